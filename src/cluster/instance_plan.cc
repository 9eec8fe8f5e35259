#include "cluster/instance_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "plan/cost/replica_stages.h"
#include "plan/placement.h"
#include "plan/plan_advice.h"
#include "plan/plan_totals.h"
#include "plan/replica_planner.h"
#include "plan/shapes/cluster_file.h"
#include "plan/shapes/typical_step.h"

namespace cotune {
namespace {

/// What it takes to plan with or without recomputation.
class InstancePlanner {
 public:
  InstancePlanner(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                  const InstanceSettings& settings, const PlanOptions& options)
      : model_(model), cluster_(cluster), group_(cluster.nodes.front()), jobs_(jobs), settings_(settings), options_(options) {
    options_.token_budget = settings.token_budget.value_or(0);
  }

  /// `constraint`: what does not fit.
  Plan plan(bool recompute, std::string& constraint) const {
    const ReplicaCandidate candidate = asked_for(recompute);
    Plan plan = empty_plan(recompute);
    constraint = candidate.reason;
    if (!constraint.empty()) return plan;
    ReplicaPlanner planner(model_, cluster_, group_, jobs_, options_, recompute);
    const PlannedReplica empty = empty_replica(candidate.configuration, planner);
    ReplicaChoice choice = planner.plan(empty, settings_.sharing, {plan.order}).front();
    constraint = std::move(choice.constraint);
    plan.replicas = {std::move(choice.replica)};
    plan.predicted = predicted_step(plan, model_, cluster_, jobs_);
    return plan;
  }

 private:
  /// The candidate of the shape that the settings have. Throws UserError that lists usual shapes where it is none.
  ReplicaCandidate asked_for(bool recompute) const {
    const auto candidates = [&](const ReplicaLimits& limits) {
      return replica_candidates(model_, jobs_, cluster_, group_, options_.dtype, limits, options_.measured);
    };
    ReplicaLimits usual = options_.replicas;
    usual.recompute = recompute;
    usual.may_be_sequence_parallel = false;
    ReplicaLimits asked = usual;
    asked.tensor_degrees = {settings_.tensor_parallel};
    asked.pipeline_stages = settings_.pipeline_stages;
    if (std::vector<ReplicaCandidate> found = candidates(asked); !found.empty()) return std::move(found.front());
    std::vector<std::string> shapes;
    for (const ReplicaCandidate& each : candidates(usual)) {
      shapes.push_back(fmt::format("{}x{}", each.configuration.tensor_parallel, each.configuration.pipeline_stages));
    }
    throw_user_error("--instance: must be a TPxPP that the model and the nodes allow, such as {}; got `{}x{}`", fmt::join(shapes, ", "),
                     settings_.tensor_parallel, settings_.pipeline_stages);
  }

  Plan empty_plan(bool recompute) const {
    Plan plan{.planner = "instance",
              .model_hash = hash_of(model_),
              .cluster_hash = hash_of(cluster_),
              .profile_hash = options_.profile_hash,
              .dtype = options_.dtype};
    for (const JobShape& job : jobs_) plan.jobs.push_back(job.name);
    plan.deployment = System::task_fused;
    plan.sharing = settings_.sharing;
    plan.layout = options_.layout;
    plan.chunk_size = options_.chunk_size;
    plan.recompute = recompute ? Recompute::always : Recompute::never;
    return plan;
  }

  PlannedReplica empty_replica(const Configuration& shape, ReplicaPlanner& planner) const {
    const int64_t budget = settings_.token_budget ? std::min(*settings_.token_budget, shape.chunk_tokens) : shape.chunk_tokens;
    PlannedReplica replica{
        .tensor_parallel = shape.tensor_parallel, .token_budget = budget, .longest_row = shape.reach(), .rows = typical_step(jobs_)};
    const std::vector<int64_t> sizes = {shape.devices()};
    const auto placed = place_replicas(sizes, group_);
    COTUNE_CHECK(placed, "{} has no place on {} nodes of {}", shape.name(), group_.count, group_.devices);
    auto next = placed->front().begin();
    for (const StageShape& stage :
         balanced_stages(model_, jobs_, shape.pipeline_stages, shape.tensor_parallel, shape.chunk_tokens,
                         planner.prices(shape.tensor_parallel), group_.device.usable_bytes())) {
      PlannedStage& planned = replica.stages.emplace_back(PlannedStage{.shape = stage});
      planned.devices.assign(next, next + shape.tensor_parallel);
      next += shape.tensor_parallel;
    }
    return replica;
  }

  const ModelConfig& model_;
  const ClusterSpec& cluster_;
  const NodeGroup& group_;
  const std::vector<JobShape>& jobs_;
  const InstanceSettings& settings_;
  PlanOptions options_;
};

}  // namespace

Plan plan_instance(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                   const InstanceSettings& settings, const PlanOptions& options, const std::string& file_name) {
  check_like_nodes(cluster, file_name, "a step without --plan");
  const InstancePlanner planner(model, cluster, jobs, settings, options);
  std::string constraint, recomputed;
  Plan plan = planner.plan(options.recompute == Recompute::always, constraint);
  if (constraint.empty()) return plan;
  if (options.recompute == Recompute::automatic) {
    plan = planner.plan(true, recomputed);
    if (recomputed.empty()) return plan;
  }
  throw_user_error("the jobs do not fit on {}x{} devices: {}{}\nWhat would:\n{}", settings.tensor_parallel, settings.pipeline_stages, constraint,
                   recomputed.empty() ? "" : "; with activations recomputed: " + recomputed, advise(model, cluster, jobs, options));
}

}  // namespace cotune
