#include "cli/run/planned_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "base/diagnostics.h"
#include "base/error.h"
#include "plan/followed_plan.h"
#include "plan/make_plan.h"

namespace cotune {
namespace {

std::vector<JobShape> shapes_of(const DivisionQuestion& question) {
  std::map<std::string, const Dataset*> rows;
  for (size_t i = 0; i < question.jobs_file.jobs.size(); ++i) rows[question.jobs_file.jobs[i].name] = &question.data[i].train;
  return job_shapes(question.jobs_file.jobs, question.model, [&](const JobSpec& job) {
    const Dataset& train = *rows.at(job.name);
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < train.size(); ++i) lengths.push_back(train.length(i));
    return histogram_of(lengths);
  });
}

/// The run's ranks as devices.
ClusterSpec cluster_of(const DivisionQuestion& question) {
  NodeGroup group{.name = "ranks",
                  .count = question.hosts,
                  .devices = question.jobs_file.run.ranks / question.hosts,
                  .device = question.costs.machine.device,
                  .link = {.bandwidth = thread_link.bytes_per_s, .latency = thread_link.latency_s}};
  group.device.memory_bytes = question.memory_bytes;
  group.device.usable_memory = 1;
  return {.nodes = {std::move(group)}, .network = link_preset("ethernet-10")};
}

PlanOptions options_for(const DivisionQuestion& question) {
  const RunSpec& run = question.jobs_file.run;
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
  options.measured = question.costs.machine.measured;
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
  return ranks == question.jobs_file.run.ranks && (question.may_divide_layers || !divides_layers) && reason_not_to_follow(plan).empty();
}

FollowedPlan followed(const Plan& plan, const DivisionQuestion& question) {
  FollowingRun run{.jobs = plan.jobs, .model = &question.model, .dtype = plan.dtype};
  Diagnostics mistakes;
  FollowedPlan result = follow(plan, run, "the plan", mistakes);
  mistakes.throw_if_any();
  return result;
}

}  // namespace

std::optional<PlannedDivision> plan_division(const DivisionQuestion& question) {
  const PlanningResult result = make_plan(question.model, cluster_of(question), shapes_of(question), options_for(question));
  std::vector<const Alternative*> possible;
  for (const Alternative& alternative : result.alternatives) {
    if (is_possible(alternative, question)) possible.push_back(&alternative);
  }
  std::ranges::stable_sort(possible, {}, [](const Alternative* each) { return each->predicted.seconds; });
  if (possible.empty()) return std::nullopt;
  const FollowedPlan best = followed(possible.front()->plans.front(), question);
  PlannedDivision division{.parallel = best.parallel(), .layouts = {}, .seconds = possible.front()->predicted.seconds};
  for (const FollowedReplica& replica : best.replicas) division.layouts.push_back(replica.layout);
  return division;
}

std::vector<PipelineLayout> divide_as_planned(RunSpec& run, const DivisionQuestion& question) {
  const std::optional<PlannedDivision> division = plan_division(question);
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
