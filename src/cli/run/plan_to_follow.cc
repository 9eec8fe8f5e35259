#include "cli/run/plan_to_follow.h"

#include <fmt/format.h>

#include "base/error.h"
#include "jobs/enum_names.h"
#include "jobs/found_chunk_size.h"
#include "jobs/parallel.h"
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
  static std::string text_of(const std::string& value) { return value; }
  template <typename Enum>
  static std::string text_of(Enum value) {
    return std::string(name_of(value));
  }

  const std::string& file_;
  const std::map<std::string, OptionPlace>& places_;
  Diagnostics& mistakes_;
};

}  // namespace

std::optional<FollowedRun> follow_plan(const std::string& file, JobsFile& jobs_file, size_t job_count,
                                       const std::map<std::string, OptionPlace>& run_places, const ModelConfig* model,
                                       const std::string& dtype, Diagnostics& mistakes) {
  try {
    return follow_plan(read_plan(file), file, jobs_file, job_count, run_places, model, dtype, mistakes);
  } catch (const UserError& error) {
    mistakes.add(error);
    return std::nullopt;
  }
}

std::optional<FollowedRun> follow_plan(const Plan& planned, const std::string& name, JobsFile& jobs_file, size_t job_count,
                                       const std::map<std::string, OptionPlace>& run_places, const ModelConfig* model,
                                       const std::string& dtype, Diagnostics& mistakes) {
  FollowingRun following{.jobs = {}, .model = model, .dtype = dtype};
  for (size_t i = 0; i < job_count; ++i) following.jobs.push_back(jobs_file.jobs[i].name);
  const size_t before = mistakes.size();
  const FollowedPlan plan = follow(planned, following, name, mistakes);
  if (mistakes.size() > before) return std::nullopt;

  RunSpec run = jobs_file.run;
  const Parallel parallel = plan.parallel();
  const bool is_divided = parallel.ranks() > 1;
  Contradictions contradictions(name, run_places, mistakes);
  if (run.parallel == parallel_as_planned || parallel_of(run) != parallel) contradictions.check("run.parallel", run.parallel, to_string(parallel));
  contradictions.check("run.ranks", run.ranks, parallel.ranks());
  if (is_divided) contradictions.check("run.pipeline_order", run.pipeline_order, plan.order);
  contradictions.check("run.sharing", run.sharing, plan.sharing);
  contradictions.check("run.fusion", run.fusion, TaskFusion::predicted);  // a plan's tasks are
  contradictions.check("run.layout", run.layout, plan.layout);
  contradictions.check("run.token_budget", run.token_budget, plan.token_budget());
  if (plan.layout == Layout::chunked && run.chunk_size != chunk_size_as_found) {
    contradictions.check("run.chunk_size", run.chunk_size, plan.chunk_size);
  }
  if (plan.recompute == Recompute::always) contradictions.check("run.recompute", run.recompute, plan.recompute);
  if (mistakes.size() > before) return std::nullopt;
  run.ranks = parallel.ranks();
  run.parallel = is_divided ? to_string(parallel) : std::string(parallel_as_stages);
  if (is_divided) run.pipeline_order = plan.order;
  run.sharing = plan.sharing;
  run.layout = plan.layout;
  run.token_budget = plan.token_budget();
  if (plan.layout == Layout::chunked) run.chunk_size = plan.chunk_size;
  if (plan.recompute == Recompute::always) run.recompute = plan.recompute;
  jobs_file.run = run;
  if (dtype.empty() && jobs_file.model.dtype == "auto") jobs_file.model.dtype = planned.dtype;

  FollowedRun followed;
  if (plan.sharing == Sharing::hybrid) followed.tasks = FollowedTasks{plan.replicas.front().hybrid_tasks, name};
  for (const FollowedReplica& replica : plan.replicas) {
    followed.layouts.push_back(replica.layout);
    followed.packing.push_back({replica.token_budget, replica.hybrid_tasks, replica.least_microbatches, replica.jobs_of_buckets});
  }
  return followed;
}

}  // namespace cotune
