/// All jobs of a list together on one kind of nodes: deployments of the replicas that there can be, and the best of them by simulation.
#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "plan/alternatives.h"
#include "plan/node_replicas.h"
#include "plan/plan_options.h"

namespace cotune {

class NodesPlanner {
 public:
  /// What is given must outlive it. `group`: of the cluster. `saving`: of every plan; where most_shards is above 1, each
  /// deployment has replicas that share their weights.
  NodesPlanner(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
               const std::vector<JobShape>& jobs, const PlanOptions& options, const MemorySaving& saving)
      : NodesPlanner(model, cluster, group, jobs, options, saving, typical_step(jobs)) {}
  /// The same for other rows of a step than those of typical_step (NodeReplicas).
  NodesPlanner(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
               const std::vector<JobShape>& jobs, const PlanOptions& options, const MemorySaving& saving, std::vector<StepRow> rows);

  /// The best alternative for each sharing policy and order, in that order, then, under the last policy, for each of the orders
  /// for few microbatches that suits a replica of some deployment.
  std::vector<Alternative> plan(System system, const std::vector<Sharing>& sharing, const std::vector<PipelineOrder>& orders,
                                const std::vector<PipelineOrder>& orders_for_few = {});
  /// Like replicas are unlike ones, too: where they are shorter under a policy and order, they take the place of what plan(unlike) found, as its.
  /// `alike`: what plan() found of like ones under the same policies and orders (LB-33).
  void take_like(System unlike, std::vector<Alternative>& found, const std::vector<Alternative>& alike);

  /// Those that fit, in the order of replica counts.
  const std::vector<Configuration>& configurations() const { return nodes_.configurations(); }
  /// Whether replicas of these counts hold the longest row.
  bool holds_all_rows(const std::vector<int64_t>& replicas) const { return nodes_.holds_all_rows(replicas); }
  /// One deployment in full, as plan() simulates those that it takes into consideration. The replicas must hold all rows.
  Alternative simulate(System system, const std::vector<int64_t>& replicas, Sharing sharing, PipelineOrder order);
  /// What plan() says of it before that: dispatch_s and estimated_s.
  ConsideredDeployment estimate(System system, const std::vector<int64_t>& replicas);

  /// Every configuration, and every deployment that plan() has estimated so far.
  const std::vector<ConsideredConfiguration>& considered() const { return nodes_.considered(); }
  const std::vector<ConsideredDeployment>& considered_deployments() const { return deployments_; }
  /// What plan(System::lobra) found by closed form.
  const Deployment& lobra() const { return lobra_; }

 private:
  /// What is simulated of a system's deployments, the shortest by its estimate first.
  std::vector<EstimatedDeployment> candidates(System system);
  ConsideredDeployment considered(System system, const EstimatedDeployment& deployed) const;
  /// Those of the candidates that may suit a replica of the deployment.
  void append_suitable(std::vector<PipelineOrder>& orders, const std::vector<PipelineOrder>& candidates, Sharing sharing,
                       const EstimatedDeployment& deployed) const;
  Alternative empty_alternative(System system, Sharing sharing, PipelineOrder order) const;
  /// One alternative per order, remembered: like replicas come with either system.
  std::vector<Alternative> simulated(System system, const EstimatedDeployment& deployed, Sharing sharing,
                                     const std::vector<PipelineOrder>& orders);
  std::vector<Alternative> simulate_deployment(System system, const EstimatedDeployment& deployed, Sharing sharing,
                                               const std::vector<PipelineOrder>& orders);
  /// Of one choice per replica: plans the slowest by itself, where it only took what a like one has, as long as that shortens it.
  void shorten_slowest(const std::vector<ReplicaChoice*>& choices, const std::vector<PlannedReplica>& empty, Sharing sharing, PipelineOrder order);
  Plan empty_plan(System system, Sharing sharing) const;

  const ModelConfig& model_;
  const ClusterSpec& cluster_;
  const std::vector<JobShape>& jobs_;
  const PlanOptions& options_;
  NodeReplicas nodes_;
  using SimulatedKey = std::tuple<std::vector<int64_t>, Sharing, std::vector<PipelineOrder>>;
  std::map<SimulatedKey, std::vector<Alternative>> simulated_;
  std::vector<ConsideredDeployment> deployments_;
  Deployment lobra_;
};

}  // namespace cotune
