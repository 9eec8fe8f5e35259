#include "cli/plan_to_follow.h"

#include <fmt/format.h>

#include "base/error.h"
#include "jobs/enum_names.h"
#include "plan/followed_plan.h"
#include "plan/plan_json.h"

namespace cotune {
namespace {

/// Options of the run that were given and say something else than the plan.
class Contradictions {
 public:
  Contradictions(const std::string& file, const std::map<std::string, OptionPlace>& places, Diagnostics& mistakes)
      : file_(file), places_(places), mistakes_(mistakes) {}

  template <typename Value>
  void check(const std::string& option, const Value& given, const Value& planned) {
    const auto place = places_.find(option);
    if (place == places_.end() || given == planned) return;
    mistakes_.add(place->second.file, place->second.line, place->second.field,
                  fmt::format("is {}, but {}, which this run is to follow, has {}: leave one of the two out",
                              text_of(given), file_, text_of(planned)));
  }

 private:
  static std::string text_of(int64_t value) { return std::to_string(value); }
  template <typename Enum>
  static std::string text_of(Enum value) {
    return std::string(name_of(value));
  }

  const std::string& file_;
  const std::map<std::string, OptionPlace>& places_;
  Diagnostics& mistakes_;
};

}  // namespace

std::optional<FollowedTasks> follow_plan(const std::string& file, JobsFile& jobs_file, size_t job_count,
                                         const std::map<std::string, OptionPlace>& run_places, const ModelConfig* model,
                                         const std::string& dtype, Diagnostics& mistakes) {
  FollowingRun following{.model = model, .dtype = dtype};
  for (size_t i = 0; i < job_count; ++i) following.jobs.push_back(jobs_file.jobs[i].name);
  const size_t before = mistakes.size();
  FollowedPlan plan;
  try {
    plan = follow(read_plan(file), following, file, mistakes);
  } catch (const UserError& error) {
    mistakes.add(error);
  }
  if (mistakes.size() > before) return std::nullopt;

  RunSpec run = jobs_file.run;
  Contradictions contradictions(file, run_places, mistakes);
  contradictions.check("run.sharing", run.sharing, plan.sharing);
  contradictions.check("run.layout", run.layout, plan.layout);
  contradictions.check("run.token_budget", run.token_budget, plan.token_budget);
  if (plan.layout == Layout::chunked) contradictions.check("run.chunk_size", run.chunk_size, plan.chunk_size);
  if (plan.recompute == Recompute::always) contradictions.check("run.recompute", run.recompute, plan.recompute);
  if (mistakes.size() > before) return std::nullopt;
  run.sharing = plan.sharing;
  run.layout = plan.layout;
  run.token_budget = plan.token_budget;
  if (plan.layout == Layout::chunked) run.chunk_size = plan.chunk_size;
  if (plan.recompute == Recompute::always) run.recompute = plan.recompute;
  jobs_file.run = run;
  if (plan.sharing != Sharing::hybrid) return std::nullopt;
  return FollowedTasks{plan.hybrid_tasks, file};
}

}  // namespace cotune
