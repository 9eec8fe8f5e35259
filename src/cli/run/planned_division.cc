#include "cli/run/planned_division.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>

#include "base/counted.h"
#include "base/diagnostics.h"
#include "base/error.h"
#include "plan/followed_plan.h"
#include "plan/make_plan.h"
#include "plan/nodes_planner.h"
#include "train/divided_memory.h"
#include "train/thread_link.h"

namespace cotune {
namespace {

/// All frozen weights, once.
int64_t weight_set_bytes(const DivisionQuestion& question) {
  return held_weight_bytes(question.model, whole_model(question.model), question.weights);
}

/// What one rank may take: of threads an equal share of what so many sets of weights leave.
int64_t memory_of_rank(const DivisionQuestion& question, size_t weight_sets) {
  if (!question.weights.are_shared) return question.memory_bytes;
  const int64_t left = question.memory_bytes - static_cast<int64_t>(weight_sets) * weight_set_bytes(question);
  return std::max<int64_t>(1, left / question.run.ranks);
}

/// The run's ranks as devices, whose work takes time_ratio times as long as the costs say.
ClusterSpec cluster_of(const DivisionQuestion& question, size_t weight_sets, double time_ratio) {
  NodeGroup group{.name = "ranks",
                  .count = question.hosts,
                  .devices = question.run.ranks / question.hosts,
                  .device = question.costs.machine.device,
                  .link = link_between_threads(question.costs.machine.measured)};
  group.device.memory_bytes = memory_of_rank(question, weight_sets);
  group.device.usable_memory = 1;
  group.device.weights = question.weights;
  for (auto& [dtype, rate] : group.device.flops) rate /= time_ratio;
  group.device.memory_bandwidth /= time_ratio;
  group.device.launch_seconds *= time_ratio;
  return {.nodes = {std::move(group)}, .network = link_preset("ethernet-10")};
}

PlanOptions options_for(const DivisionQuestion& question, std::vector<int64_t> tensor_degrees, const MeasuredTimes* measured) {
  const RunSpec& run = question.run;
  PlanOptions options;
  options.dtype = question.dtype;
  options.layout = run.layout;
  options.chunk_size = run.chunk_size;
  options.sharing = {run.sharing};
  options.token_budget = run.token_budget;
  options.orders = {PipelineOrder::automatic};
  options.orders_for_few = {};
  options.may_idle = false;  // every rank takes part
  options.savings = {};
  if (question.may_shard_weights) options.savings = {{.most_shards = run.ranks}};
  options.recompute = run.recompute;
  options.measured = measured;
  options.replicas.tensor_degrees = std::move(tensor_degrees);
  options.replicas.may_be_sequence_parallel = question.may_be_sequence_parallel;
  return options;
}

/// Whether threads have room for the weights of all degrees that the plan has, where it was found with room for fewer.
bool holds_weight_sets(const Plan& plan, const DivisionQuestion& question) {
  if (!question.weights.are_shared) return true;
  int64_t bytes = 0;
  std::set<int64_t> degrees;
  for (const PlannedReplica& replica : plan.replicas) {
    if (degrees.insert(replica.tensor_parallel).second) bytes += weight_set_bytes(question);
    for (const PlannedStage& stage : replica.stages) bytes += replica.tensor_parallel * stage.memory.total();
  }
  return bytes <= question.memory_bytes;
}

bool is_possible(const Alternative& alternative, const DivisionQuestion& question) {
  if (!alternative.fits() || is_sequential(alternative.deployment) || alternative.plans.size() != 1) return false;
  const Plan& plan = alternative.plans.front();
  int64_t ranks = 0;
  for (const PlannedReplica& replica : plan.replicas) ranks += replica.devices();
  return ranks == question.run.ranks && holds_weight_sets(plan, question);
}

FollowedPlan followed(const Plan& plan, const DivisionQuestion& question) {
  FollowingRun run{.jobs = plan.jobs, .model = &question.model, .dtype = plan.dtype};
  Diagnostics mistakes;
  FollowedPlan result = follow(plan, run, "the plan", mistakes);
  mistakes.throw_if_any();
  return result;
}

/// What the planner is asked, which lives as long as its answers are made.
struct Planning {
  /// tensor_degrees: that are looked at, each of which has a set of weights; none: all, with room for one.
  Planning(const DivisionQuestion& question, std::vector<int64_t> tensor_degrees, double time_ratio)
      : cluster(cluster_of(question, std::max<size_t>(1, tensor_degrees.size()), time_ratio)) {
    if (question.costs.machine.measured != nullptr) measured = question.costs.machine.measured->scaled(time_ratio);
    options = options_for(question, std::move(tensor_degrees), measured ? &*measured : nullptr);
  }
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  ClusterSpec cluster;
  std::optional<MeasuredTimes> measured;
  PlanOptions options;
};

/// loaded: that there are weights for; empty: any.
std::vector<int64_t> possible_degrees(const DivisionQuestion& question, std::vector<int64_t> loaded) {
  return loaded.empty() && !question.may_divide_layers ? std::vector<int64_t>{1} : loaded;
}

std::optional<PlannedDivision> best_division(const DivisionQuestion& question, const Planning& planning, const std::vector<JobShape>& jobs) {
  const PlanningResult result = make_plan(question.model, planning.cluster, jobs, planning.options);
  std::vector<const Alternative*> possible;
  for (const Alternative& alternative : result.alternatives) {
    if (is_possible(alternative, question)) possible.push_back(&alternative);
  }
  std::ranges::stable_sort(possible, {}, [](const Alternative* each) { return each->predicted.seconds; });
  if (possible.empty()) return std::nullopt;
  const FollowedPlan best = followed(possible.front()->plans.front(), question);
  PlannedDivision division{.parallel = best.parallel(), .layouts = {}, .seconds = possible.front()->predicted.seconds};
  for (const FollowedReplica& replica : best.replicas) division.layouts.push_back(replica.layout);
  for (int32_t rank = 0; !question.weights.are_shared && rank < question.run.ranks; ++rank) {
    division.rank_weight_bytes =
        std::max(division.rank_weight_bytes, weight_bytes_of_rank(question.model, division.layouts, rank, question.weights));
  }
  return division;
}

/// Of a step; 0 where the division is none that the planner knows, or does not hold the jobs.
double seconds_divided_as(const Parallel& parallel, const DivisionQuestion& question, const Planning& planning, const std::vector<JobShape>& jobs) {
  const PlanOptions& options = planning.options;
  const bool shards = parallel.shards_weights();
  NodesPlanner planner(question.model, planning.cluster, planning.cluster.nodes.front(), jobs, options,
                       {.recompute = options.recompute == Recompute::always, .most_shards = shards ? question.run.ranks : 1});
  std::vector<int64_t> counts;
  int64_t known = 0;
  for (const Configuration& each : planner.configurations()) {
    const int64_t alike = std::ranges::count_if(parallel.replicas, [&](const ReplicaDegrees& replica) {
      return replica.tensor == each.tensor_parallel && replica.is_sequence_parallel == each.is_sequence_parallel &&
             replica.pipeline == each.pipeline_stages && replica.stages_per_rank == 1 && replica.shards_weights == (each.shards > 1);
    });
    const bool is_whole_set = each.shards == 1 || alike == each.shards;  // all that share a set of weights
    counts.push_back(is_whole_set ? alike / each.shards : 0);
    known += counts.back() * each.shards;
  }
  if (known != std::ssize(parallel.replicas) || !planner.holds_all_rows(counts)) return 0;
  const Alternative alternative = planner.simulate(System::lobra, counts, options.sharing.front(), options.orders.front());
  return alternative.fits() ? alternative.predicted.seconds : 0;
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
  return best_division(question, Planning(question, possible_degrees(question, {}), 1), jobs);
}

std::optional<DivisionAnswer> plan_division_anew(const DivisionQuestion& question, const DivisionRequest& request) {
  Planning planning(question, possible_degrees(question, request.tensor_degrees), request.time_ratio);
  planning.options.stop = request.stop;
  std::optional<PlannedDivision> best = best_division(question, planning, request.jobs);
  if (!best) return std::nullopt;
  const double kept_seconds =
      best->parallel == request.running ? best->seconds : seconds_divided_as(request.running, question, planning, request.jobs);
  return DivisionAnswer{.best = std::move(*best), .kept_seconds = kept_seconds};
}

std::vector<PipelineLayout> divide_as_planned(RunSpec& run, const DivisionQuestion& question, const std::vector<JobShape>& jobs) {
  const std::optional<PlannedDivision> division = plan_division(question, jobs);
  if (division) {
    run.parallel = to_string(division->parallel);
    fmt::print(stderr, "run.parallel: {}, for which {:.3g} s a round are predicted\n", run.parallel, division->seconds);
    return division->layouts;
  }
  if (run.ranks > question.model.layer_count) {
    throw_user_error("run.parallel: is auto, and nothing that takes all {} ranks fits; they cannot be stages of {} either", run.ranks,
                     counted(question.model.layer_count, "layer"));
  }
  run.parallel = parallel_as_stages;
  fmt::print(stderr, "run.parallel: the planner finds nothing that takes all {} ranks: they are stages of a pipeline\n", run.ranks);
  return {};
}

}  // namespace cotune
