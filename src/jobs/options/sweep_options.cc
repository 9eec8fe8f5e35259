#include "jobs/options/sections.h"

#include <fmt/format.h>

#include "jobs/options/option_entry.h"

namespace cotune::options {
namespace {

Condition defines_a_sweep() {
  return {.holds = [](const OptionTarget& target) { return target.job->sweep.of.empty(); },
          .summary = "of a sweep",
          .complaint = [](const std::string& key, const OptionTarget& target) {
            return fmt::format("`{}` belongs to a sweep; this job is a candidate of `{}`", key, target.job->sweep.of);
          },
          .reads = {"sweep.of"},
          .unset_is_fine = true};
}

Condition is_candidate() {
  return {
      .holds = [](const OptionTarget& target) { return !target.job->sweep.of.empty(); },
      .summary = "of a candidate",
      .complaint = [](const std::string& key, const OptionTarget&) { return fmt::format("`{}` belongs to a candidate of a sweep, with `of`", key); },
      .reads = {"sweep.of"},
      .unset_is_fine = true};
}

Condition halves() {
  return {.holds = [](const OptionTarget& target) { return target.job->sweep.halving.is_on(); },
          .summary = "with `first_steps` or `first_fraction`",
          .complaint = [](const std::string& key, const OptionTarget&) {
            return fmt::format("`{}` needs first_steps or first_fraction beside it", key);
          },
          .reads = {"sweep.halving.first_steps", "sweep.halving.first_fraction"}};
}

}  // namespace

void add_sweep(std::vector<Option>& table) {
  const auto own = [](std::optional<Condition> condition = {}, std::string group = {}, std::string alternative = {}) {
    return Extra{.in_defaults = false, .group = std::move(group), .alternative = std::move(alternative), .condition = std::move(condition)};
  };
  const auto recorded = [&](std::optional<Condition> condition = {}) {
    Extra extra = own(std::move(condition));
    extra.is_recorded = true;
    return extra;
  };
  table.push_back(field(Section::sweep, "of", COTUNE_FIELD(job->sweep.of), of_type(OptionType::identifier),
                        "The sweep whose candidate the job is: cotune writes it into the configuration of a run.", recorded()));
  table.push_back(field(Section::sweep, "values", COTUNE_FIELD(job->sweep.values), of_type(OptionType::swept_values),
                        "What the sweep has set in this candidate.", recorded(is_candidate())));
  table.push_back(field(Section::sweep, "grid", COTUNE_FIELD(job->sweep.grid), of_type(OptionType::grid),
                        "Options of the job, each with the values to try: `{adapter.r: [4, 8], train.lr: [1e-4, 3e-4]}`; every combination "
                        "is a candidate. Values that belong together are maps of a section: `adapter: [{r: 4, alpha: 8}, {r: 8, alpha: 16}]`.",
                        own(defines_a_sweep())));
  table.push_back(field(Section::sweep, "random", COTUNE_FIELD(job->sweep.random), of_type(OptionType::distributions),
                        "Options of the job, each with a list to choose from or a range: `{uniform: [0, 0.1]}`, also with `step`, or "
                        "`{log_uniform: [1e-5, 1e-3]}`.",
                        own(defines_a_sweep())));
  table.push_back(field(Section::sweep, "samples", COTUNE_FIELD(job->sweep.samples), whole(0, 10'000),
                        "How often to draw from `random`; each draw is combined with every combination of the grid.", own(defines_a_sweep())));
  table.push_back(field(Section::sweep, "seed", COTUNE_FIELD(job->sweep.seed), of_type(OptionType::seed), "Seed of the draws.",
                        own(defines_a_sweep())));
  table.push_back(field(Section::sweep, "metric", COTUNE_FIELD(job->sweep.metric), choice_of<SweepMetric>(),
                        "What candidates are compared by: the held-out loss, or the share of held-out rows with every token predicted, and "
                        "of equal shares the loss.",
                        own()));
  table.push_back(field(Section::sweep, "max_concurrent", COTUNE_FIELD(job->sweep.max_concurrent), whole(0, 10'000),
                        "Most candidates that train at a time; 0: as many as memory takes.", own()));
  table.push_back(field(Section::halving, "first_steps", COTUNE_FIELD(job->sweep.halving.first_steps), whole(1, most_steps),
                        "Steps after which candidates are compared first; then at `factor` times as many, and so on.",
                        own({}, "first rung", "first_steps")));
  table.push_back(field(Section::halving, "first_fraction", COTUNE_FIELD(job->sweep.halving.first_fraction), above(0, 1),
                        "The same as a share of each candidate's own steps.", own({}, "first rung", "first_fraction")));
  table.push_back(field(Section::halving, "factor", COTUNE_FIELD(job->sweep.halving.factor), whole(2, 1000),
                        "The best 1/factor of those that came to a rung go on.", own(halves())));
  table.push_back(field(Section::halving, "mode", COTUNE_FIELD(job->sweep.halving.mode), choice_of<HalvingMode>(),
                        "`asynchronous`: a candidate is judged when it comes to a rung, against those that have been there. `synchronous`: it "
                        "waits there, out of memory, for all others.",
                        own(halves())));
}

}  // namespace cotune::options
