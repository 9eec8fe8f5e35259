#include "plan/plan_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "base/counted.h"
#include "base/quantity_text.h"
#include "plan/budget_search.h"
#include "plan/fitting_plan.h"
#include "plan/row_needs.h"
#include "schedule/microbatch.h"

namespace cotune {
namespace {

constexpr int64_t most_searched_devices = 16;  // for which the least memory is searched, and the longest rows

std::string largest_term(const StageMemory& memory) {
  const std::pair<int64_t, const char*> terms[] = {{memory.weights, "frozen weights"},
                                                   {memory.adapters, "adapters with gradients and moments"},
                                                   {memory.activations, "activations"},
                                                   {memory.workspace, "workspace"}};
  const auto most = std::max_element(std::begin(terms), std::end(terms));
  return fmt::format("{} of {}", bytes_text(most->first), most->second);
}

/// The `memory` of the cluster file of which so much may be used, where that is another number; what bytes_text says of it is enough.
std::string memory_that_has(int64_t bytes, const NodeGroup& group) {
  if (group.device.usable_memory >= 1) return "";
  return bytes_text(bytes_rounded_up(static_cast<int64_t>(std::ceil(static_cast<double>(bytes) / group.device.usable_memory)) + 2));
}

class Adviser {
 public:
  Adviser(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs, const PlanOptions& options)
      : model_(model), cluster_(cluster), jobs_(jobs), options_(options), rows_(model, cluster, jobs, options) {}

  std::string on(const NodeGroup& group) const {
    const Reach reach = rows_.reach(group, std::max({options_.replicas.most_chunk_tokens, options_.token_budget, whole_chunk_steps(rows_.longest())}),
                                    whole_chunk_steps(least_budget(options_)));
    std::string text = reach.row_tokens >= rows_.longest() ? smaller_microbatches(group, reach) : "";
    if (text.empty()) text = more_memory(group, reach);
    if (is_packed()) {
      text += fmt::format("  {}: run.sharing batch-all puts all rows of a step into one microbatch; this holds under hybrid, temporal and separate, "
                          "which make smaller ones.\n", group.name);
    }
    return text;
  }

 private:
  /// What must fit at least, in words. No microbatch is smaller than an atom, however short the rows.
  std::string rows() const {
    return rows_.is_short() ? fmt::format("microbatches of {} tokens, the smallest token budget,", rows_.longest())
                            : fmt::format("rows of {} tokens", rows_.longest());
  }

  /// Where run.token_budget is given and read.
  bool is_budget_kept() const { return options_.token_budget > 0 && !is_packed(); }

  bool is_packed() const {
    return std::ranges::all_of(options_.sharing, [](Sharing each) { return each == Sharing::batch_all; });
  }

  /// The options as they are, but for the sharing that the text recommends.
  PlanOptions options_with_budget(int64_t token_budget) const {
    PlanOptions options = options_;
    if (is_packed()) options.sharing = {Sharing::hybrid};
    options.token_budget = token_budget;
    return options;
  }

  /// Whether a plan fits with these options.
  bool has_plan(const NodeGroup& group, const PlanOptions& options, const std::vector<JobShape>& jobs) const {
    return plan_that_fits({model_, with_network(cluster_, group), jobs, options}, group).has_value();
  }
  bool has_plan(const NodeGroup& group, const PlanOptions& options) const { return has_plan(group, options, jobs_); }

  bool is_searched(const NodeGroup& group) const { return group.count * group.devices <= most_searched_devices; }

  /// The least memory with this budget, found by planning; nothing where none does, or on as many devices as no search is made for.
  std::optional<FittingPlan> searched_memory(const NodeGroup& group, int64_t token_budget) const {
    if (!is_searched(group)) return std::nullopt;
    const PlanOptions options = options_with_budget(token_budget);
    return plan_in_least_memory({model_, cluster_, jobs_, options}, group);
  }

  static FittingPlan row_alone(const Need& need) {
    return {.replicas = need.name(), .devices = need.devices(), .memory = need.memory(), .limit_bytes = bytes_rounded_up(need.bytes())};
  }

  /// What the longest row takes by itself where a plan fits with it, else searched.
  std::optional<FittingPlan> least_memory(const NodeGroup& group, int64_t token_budget, const Need& need) const {
    const PlanOptions options = options_with_budget(token_budget);
    const FittingPlan alone = row_alone(need);
    const bool is_enough = alone.limit_bytes > group.device.usable_bytes() &&
                           plan_with_memory({model_, with_network(cluster_, group), jobs_, options}, group, alone.limit_bytes);
    if (is_enough) return alone;
    NodeGroup roomier = group;  // a plan needs more than the row alone
    roomier.device.memory_bytes = std::max(group.device.usable_bytes(), alone.limit_bytes);
    roomier.device.usable_memory = 1;
    return searched_memory(roomier, token_budget);
  }

  /// Where no plan fits, and no other option would do.
  std::string more_memory(const NodeGroup& group, const Reach& reach) const {
    std::string text;
    if (const std::optional<Need> least = rows_.least(group)) text += memory_line(group, *least);
    return text + devices_line(group) + rows_line(group, reach);
  }

  std::string memory_line(const NodeGroup& group, const Need& least) const {
    const int64_t budget = options_.token_budget;
    const std::optional<FittingPlan> of_budget = is_budget_kept() ? searched_memory(group, budget) : std::nullopt;
    const std::optional<FittingPlan> planned = of_budget ? of_budget : least_memory(group, budget, least);
    const FittingPlan held = planned.value_or(row_alone(least));
    const std::string memory = planned ? memory_that_has(held.limit_bytes, group) : "";
    std::string text = fmt::format(
        "  {}: {} at least {} per device{}, as {}, {} of it; {} of its {} may be used{}.\n", group.name,
        of_budget ? fmt::format("with run.token_budget {} a step needs", budget) : rows() + " need", bytes_text(held.limit_bytes),
        planned ? "" : " by themselves", held.replicas, largest_term(held.memory), bytes_text(group.device.usable_bytes()),
        bytes_text(group.device.memory_bytes), memory.empty() ? "" : fmt::format("; memory {} would do", memory));
    if (!of_budget || budget == least.chunk_tokens || bytes_rounded_up(least.bytes()) >= held.limit_bytes) return text;
    const std::optional<FittingPlan> other = least_memory(group, least.chunk_tokens, least);
    if (!other || other->limit_bytes >= held.limit_bytes) return text;
    const std::string less = memory_that_has(other->limit_bytes, group);
    return text + fmt::format("  {}: run.token_budget {} in its place would do with {}{}, as {}.\n", group.name, least.chunk_tokens,
                              bytes_text(other->limit_bytes), less.empty() ? "" : fmt::format(" (memory {})", less), other->replicas);
  }

  std::string devices_line(const NodeGroup& group) const {
    const auto holds = [&](const RowNeeds::OnNodes& each) {
      NodeGroup more = group;
      more.count = each.nodes;
      PlanOptions options = options_with_budget(is_budget_kept() ? each.need.chunk_tokens : options_.token_budget);
      options.replicas.tensor_degrees = {each.need.candidate.configuration.tensor_parallel};
      options.replicas.pipeline_stages = each.need.candidate.configuration.pipeline_stages;
      return has_plan(more, options);
    };
    const std::optional<RowNeeds::OnNodes> fewest = rows_.fewest_devices(group, holds);
    if (!fewest) return "";
    const Need& need = fewest->need;
    const std::string network = fewest->nodes > 1 ? assumed_network(cluster_, group) : "";
    const bool is_of_another_budget = is_budget_kept() && options_.token_budget != need.chunk_tokens;
    return fmt::format("  {}: {}{} would hold it as {} ({} in place of {}{}), {} per device.\n", group.name,
                       is_of_another_budget ? fmt::format("with run.token_budget {}, ", need.chunk_tokens) : "",
                       counted(fewest->devices, "device"), need.name(), counted(fewest->nodes, "node"), group.count,
                       network.empty() ? "" : fmt::format(", over {}, which is assumed", network), bytes_text(need.bytes()));
  }

  std::string rows_line(const NodeGroup& group, const Reach& reach) const {
    const int64_t budget = options_.token_budget;
    const int64_t tokens = longest_rows_that_fit(group, budget > 0 ? rows_.reach(group, budget, budget).row_tokens : reach.row_tokens);
    return tokens > 0 ? fmt::format("  {}: as it is, rows of up to {} tokens fit (data.max_length).\n", group.name, tokens) : "";
  }

  /// `most`, or the longest below it for which a plan fits; 0: none.
  int64_t longest_rows_that_fit(const NodeGroup& group, int64_t most) const {
    most = std::min(most, whole_chunk_steps(rows_.longest()) - chunk_step) / chunk_step;
    const PlanOptions options = options_with_budget(options_.token_budget);
    const auto fits = [&](int64_t steps) {
      std::vector<JobShape> jobs = jobs_;
      for (JobShape& job : jobs) job.lengths = truncated(job.lengths, steps * chunk_step);
      return has_plan(group, options, jobs);
    };
    int64_t least = atom_tokens / chunk_step;
    if (most < least) return 0;
    if (fits(most)) return most * chunk_step;
    if (most == least || !is_searched(group) || !fits(least)) return 0;
    while (most - least > 1) {
      const int64_t middle = (least + most) / 2;
      (fits(middle) ? least : most) = middle;
    }
    return least * chunk_step;
  }

  /// Where the longest row fits, rows beside it are too many. "" where no option of it makes a plan fit.
  std::string smaller_microbatches(const NodeGroup& group, const Reach& reach) const {
    const std::string fits =
        fmt::format("  {}: {} fit; a microbatch may have up to {} tokens, as {}.\n", group.name, rows(), reach.tokens, reach.name);
    if (least_budget(options_) > reach.tokens) {
      PlanOptions options = options_with_budget(options_.token_budget);
      options.chunk_size = reach.tokens;
      if (!has_plan(group, options)) return "";
      return fits + fmt::format("  {}: run.chunk_size is {}; {} or less would do.\n", group.name, options_.chunk_size, reach.tokens);
    }
    if (!is_budget_kept()) return is_packed() && has_plan(group, options_with_budget(options_.token_budget)) ? fits : "";
    const std::string would_do = budgets_that_would_do(group, reach);
    if (would_do.empty()) return "";
    std::string text = fits + fmt::format("  {}: run.token_budget is {}; {} would do.\n", group.name, options_.token_budget, would_do);
    if (const std::optional<FittingPlan> held = searched_memory(group, options_.token_budget)) {
      const std::string memory = memory_that_has(held->limit_bytes, group);
      text += fmt::format("  {}: with run.token_budget {} a step needs at least {} per device{}, as {}.\n", group.name, options_.token_budget,
                          bytes_text(held->limit_bytes), memory.empty() ? "" : fmt::format(" (memory {})", memory), held->replicas);
    }
    return text;
  }

  /// Token budgets with which the longest row fits, and a plan: those that take it in one microbatch, or the smallest, of which it is a chain.
  std::string budgets_that_would_do(const NodeGroup& group, const Reach& reach) const {
    const auto has_plan_with = [&](int64_t budget) {
      return budget != options_.token_budget && has_plan(group, options_with_budget(budget));
    };
    const int64_t smallest = least_budget(options_), whole = rows_.longest();
    if (reach.tokens >= whole && has_plan_with(whole)) {
      return reach.tokens > whole && has_plan_with(reach.tokens) ? fmt::format("{} to {}", whole, reach.tokens) : std::to_string(whole);
    }
    return has_plan_with(smallest) ? std::to_string(smallest) : "";
  }

  const ModelConfig& model_;
  const ClusterSpec& cluster_;
  const std::vector<JobShape>& jobs_;
  const PlanOptions& options_;
  const RowNeeds rows_;
};

}  // namespace

std::string advise(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                   const PlanOptions& options) {
  const Adviser adviser(model, cluster, jobs, options);
  std::string text;
  for (const NodeGroup& group : cluster.nodes) text += adviser.on(group);
  return text;
}

}  // namespace cotune
