#include "cli/run/planned_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/diagnostics.h"
#include "base/error.h"
#include "plan/followed_plan.h"
#include "plan/make_plan.h"
#include "train/rank_planner.h"

namespace cotune {
namespace {

/// The run's ranks as devices, whose work takes time_ratio times as long as the costs say.
ClusterSpec cluster_of(const DivisionQuestion& question, double time_ratio) {
  NodeGroup group{.name = "ranks",
                  .count = question.hosts,
                  .devices = question.run.ranks / question.hosts,
                  .device = question.costs.machine.device,
                  .link = {.bandwidth = thread_link.bytes_per_s, .latency = thread_link.latency_s}};
  group.device.memory_bytes = question.memory_bytes;
  group.device.usable_memory = 1;
  for (auto& [dtype, rate] : group.device.flops) rate /= time_ratio;
  group.device.memory_bandwidth /= time_ratio;
  group.device.launch_seconds *= time_ratio;
  return {.nodes = {std::move(group)}, .network = link_preset("ethernet-10")};
}

PlanOptions options_for(const DivisionQuestion& question, const MeasuredTimes* measured) {
  const RunSpec& run = question.run;
  PlanOptions options;
  options.dtype = question.dtype;
  options.layout = run.layout;
  options.chunk_size = run.chunk_size;
  options.sharing = {run.sharing};
  options.token_budget = run.token_budget;
  options.orders = {PipelineOrder::automatic};
  options.orders_for_few = {};
  options.savings = {};
  options.recompute = run.recompute;
  options.measured = measured;
  return options;
}

bool is_possible(const Alternative& alternative, const DivisionQuestion& question) {
  if (!alternative.fits() || is_sequential(alternative.deployment) || alternative.plans.size() != 1) return false;
  const Plan& plan = alternative.plans.front();
  int64_t ranks = 0;
  bool divides_layers = false;
  for (const PlannedReplica& replica : plan.replicas) {
    ranks += replica.devices();
    divides_layers = divides_layers || replica.tensor_parallel > 1;
  }
  return ranks == question.run.ranks && (question.may_divide_layers || !divides_layers) && reason_not_to_follow(plan).empty();
}

FollowedPlan followed(const Plan& plan, const DivisionQuestion& question) {
  FollowingRun run{.jobs = plan.jobs, .model = &question.model, .dtype = plan.dtype};
  Diagnostics mistakes;
  FollowedPlan result = follow(plan, run, "the plan", mistakes);
  mistakes.throw_if_any();
  return result;
}

/// The shortest step first.
std::vector<PlannedDivision> possible_divisions(const DivisionQuestion& question, const std::vector<JobShape>& jobs, double time_ratio) {
  std::optional<MeasuredTimes> measured;
  if (question.costs.machine.measured != nullptr) measured = question.costs.machine.measured->scaled(time_ratio);
  const PlanningResult result =
      make_plan(question.model, cluster_of(question, time_ratio), jobs, options_for(question, measured ? &*measured : nullptr));
  std::vector<PlannedDivision> divisions;
  for (const Alternative& alternative : result.alternatives) {
    if (!is_possible(alternative, question)) continue;
    const FollowedPlan plan = followed(alternative.plans.front(), question);
    PlannedDivision& division = divisions.emplace_back(PlannedDivision{plan.parallel(), {}, alternative.predicted.seconds});
    for (const FollowedReplica& replica : plan.replicas) division.layouts.push_back(replica.layout);
  }
  std::ranges::stable_sort(divisions, {}, &PlannedDivision::seconds);
  return divisions;
}

}  // namespace

std::vector<JobShape> shapes_of(const JobsFile& jobs_file, std::span<const JobData> data, const ModelConfig& model) {
  std::map<std::string, const Dataset*> rows;
  for (size_t i = 0; i < jobs_file.jobs.size(); ++i) rows[jobs_file.jobs[i].name] = &data[i].train;
  return job_shapes(jobs_file.jobs, model, [&](const JobSpec& job) {
    const Dataset& train = *rows.at(job.name);
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < train.size(); ++i) lengths.push_back(train.length(i));
    return histogram_of(lengths);
  });
}

std::optional<PlannedDivision> plan_division(const DivisionQuestion& question, const std::vector<JobShape>& jobs) {
  const std::vector<PlannedDivision> divisions = possible_divisions(question, jobs, 1);
  if (divisions.empty()) return std::nullopt;
  return divisions.front();
}

std::optional<DivisionAnswer> plan_division_anew(const DivisionQuestion& question, const DivisionRequest& request) {
  std::vector<PlannedDivision> divisions = possible_divisions(question, request.jobs, request.time_ratio);
  std::erase_if(divisions, [&](const PlannedDivision& each) {
    return !std::ranges::includes(request.tensor_degrees, each.parallel.tensor());
  });
  if (divisions.empty()) return std::nullopt;
  DivisionAnswer answer{.best = divisions.front()};
  const auto running = std::ranges::find(divisions, request.running, &PlannedDivision::parallel);
  if (running != divisions.end()) answer.kept_seconds = running->seconds;
  return answer;
}

std::vector<PipelineLayout> divide_as_planned(RunSpec& run, const DivisionQuestion& question, const std::vector<JobShape>& jobs) {
  const std::optional<PlannedDivision> division = plan_division(question, jobs);
  if (division) {
    run.parallel = to_string(division->parallel);
    fmt::print(stderr, "run.parallel: {}, for which {:.3g} s a round are predicted\n", run.parallel, division->seconds);
    return division->layouts;
  }
  if (run.ranks > question.model.layer_count) {
    throw_user_error("run.parallel: is auto, and nothing that takes all {} ranks fits; they cannot be stages of {} layers either", run.ranks,
                     question.model.layer_count);
  }
  run.parallel = parallel_as_stages;
  fmt::print(stderr, "run.parallel: the planner finds nothing that takes all {} ranks: they are stages of a pipeline\n", run.ranks);
  return {};
}

}  // namespace cotune
