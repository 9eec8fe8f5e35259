/// All jobs of a list together on one kind of nodes: configurations, deployments of them, and the best
/// simulated.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "plan/alternatives.h"
#include "plan/deployment/step_dispatch.h"
#include "plan/plan_options.h"
#include "plan/replica_planner.h"

namespace cotune {

class NodesPlanner {
 public:
  /// What is given must outlive it. `group`: of the cluster. `saving`: of every plan; where most_shards is above 1, each
  /// deployment has replicas that share their weights.
  NodesPlanner(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
               const std::vector<JobShape>& jobs, const PlanOptions& options, const MemorySaving& saving);

  /// The best alternative for each sharing policy and order, in that order, then, under the last policy, for each of the orders
  /// for few microbatches that suits a replica of some deployment.
  std::vector<Alternative> plan(System system, const std::vector<Sharing>& sharing, const std::vector<PipelineOrder>& orders,
                                const std::vector<PipelineOrder>& orders_for_few = {});

  /// Those that fit, in the order of replica counts.
  const std::vector<Configuration>& configurations() const { return configurations_; }
  /// Whether replicas of these counts hold the longest row.
  bool holds_all_rows(const std::vector<int64_t>& replicas) const;
  /// One deployment in full, as plan() simulates those that it takes into consideration. The replicas must hold all rows.
  Alternative simulate(System system, const std::vector<int64_t>& replicas, Sharing sharing, PipelineOrder order);
  /// What plan() says of it before that: dispatch_s and estimated_s.
  ConsideredDeployment estimate(System system, const std::vector<int64_t>& replicas);

  /// Every configuration, and every deployment that plan() has estimated so far.
  const std::vector<ConsideredConfiguration>& considered() const { return considered_; }
  const std::vector<ConsideredDeployment>& considered_deployments() const { return deployments_; }
  /// What plan(System::lobra) found by closed form.
  const Deployment& lobra() const { return lobra_; }

 private:
  /// Replica counts over configurations_, with how many rows of each bucket each replica gets.
  struct Deployed {
    System system = System::lobra;
    std::vector<int64_t> replicas;
    RowDispatch dispatch;
    // Of the slowest replica of each configuration, by ReplicaPlanner::estimate, and the exchange of gradients:
    double estimated_s = 0;
    int64_t estimated_bytes = 0;  ///< of the fullest device
    std::string constraint;       ///< of the replica that overflows most
    Overflow overflow;
    double fitting_s = 0;  ///< of those that fit: by this they are sorted, so that what may fit otherwise is tried
  };

  int64_t device_count() const { return group_.count * group_.devices; }
  /// Whether it saves memory as it should: with sharded weights in some replicas, where that is asked for.
  bool is_wanted(const std::vector<int64_t>& replicas) const;
  void find_configurations();
  /// Makes the linear costs of a configuration those that ReplicaPlanner::estimate has for the slowest of as many replicas
  /// as there is room for, with the rows that fit.
  void calibrate(size_t configuration);
  /// The slowest of some replicas of one configuration, simulated, whether it fits or not; nothing where it has no rows.
  std::optional<ReplicaChoice> estimated(size_t configuration, const std::vector<std::vector<StepRow>>& rows, const RowDispatch& dispatch);
  std::string text_of(const std::vector<int64_t>& replicas) const;
  ConsideredDeployment considered(const Deployed& deployed) const;
  /// Those of the candidates that may suit a replica of the deployment.
  void append_suitable(std::vector<PipelineOrder>& orders, const std::vector<PipelineOrder>& candidates, Sharing sharing,
                       const Deployed& deployed) const;
  /// Of gradients, between replicas of these counts that stand on the first nodes.
  double exchange_s(const std::vector<int64_t>& replicas);
  /// The replicas for which there is a place on the nodes.
  std::vector<int64_t> placed(std::vector<int64_t> replicas) const;
  /// By the linear model and the exchange of gradients, the best number of like replicas below the most.
  std::optional<int64_t> best_fewer(size_t configuration, int64_t most);
  /// By their estimates, the shortest first.
  void sort(std::vector<Deployed>& found) const;
  /// Why a deployment is not simulated in full where so many of those found are.
  static std::string reason_not_to_simulate(const Deployed& deployed, const std::vector<Deployed>& found, int64_t simulated);
  RowDispatch dispatched(const std::vector<int64_t>& replicas) const { return dispatch_rows(costs_, replicas, buckets_.sequences); }
  Deployed deployed(System system, std::vector<int64_t> replicas);
  /// Unless one of `found` has these replicas, or they are none that are wanted.
  void add(std::vector<Deployed>& found, System system, const std::vector<int64_t>& replicas);
  std::vector<Deployed> alike_deployments(System system);
  std::vector<Deployed> unlike_deployments(System system);
  Alternative empty_alternative(System system, Sharing sharing, PipelineOrder order) const;
  /// The same, remembered: like replicas come with either system.
  std::vector<Alternative> simulated(const Deployed& deployed, Sharing sharing,
                                     const std::vector<PipelineOrder>& orders);
  /// One alternative per order.
  std::vector<Alternative> simulate_deployment(const Deployed& deployed, Sharing sharing,
                                               const std::vector<PipelineOrder>& orders);
  Plan empty_plan(System system, Sharing sharing) const;
  /// One of the copies that stand on these devices.
  PlannedReplica empty_replica(const Configuration& shape, const std::vector<PlannedDevice>& devices, int64_t copy);

  const ModelConfig& model_;
  const ClusterSpec& cluster_;
  const NodeGroup& group_;
  const std::vector<JobShape>& jobs_;
  const PlanOptions& options_;
  MemorySaving saving_;
  std::vector<StepRow> rows_;
  int64_t longest_ = 0, tokens_ = 0;
  std::string no_deployment_;                  ///< why there is none; "": there are some
  std::vector<Configuration> configurations_;  ///< that fit
  std::vector<size_t> place_in_considered_;
  StepBuckets buckets_;
  std::vector<BucketCosts> costs_;
  std::map<std::string, std::vector<StageShape>> stages_;  ///< by configuration
  std::map<size_t, int64_t> exchanged_;                    ///< exchanged_parameters by configuration
  ReplicaPlanner replica_planner_;
  using SimulatedKey = std::tuple<std::vector<int64_t>, Sharing, std::vector<PipelineOrder>>;
  std::map<SimulatedKey, std::vector<Alternative>> simulated_;
  std::vector<ConsideredConfiguration> considered_;
  std::vector<ConsideredDeployment> deployments_;
  Deployment lobra_;
};

}  // namespace cotune
