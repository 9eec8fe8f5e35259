/// The replicas that there can be on one kind of nodes, and what a step takes on each of them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/alternatives.h"
#include "plan/deployment/step_dispatch.h"
#include "plan/plan_options.h"
#include "plan/replica_planner.h"

namespace cotune {

/// Replica counts over the configurations of a kind of nodes, with how many rows of each bucket each replica gets.
struct EstimatedDeployment {
  std::vector<int64_t> replicas;
  RowDispatch dispatch;
  // Of the slowest replica of each configuration, by ReplicaPlanner::estimate, and the exchange of gradients:
  double estimated_s = 0;
  int64_t estimated_bytes = 0;  ///< of the fullest device
  std::string constraint;       ///< of the replica that overflows most; "": it fits
  Overflow overflow;            ///< of `constraint`
  double fitting_s = 0;         ///< estimated_s of those replicas that fit alone
};

class NodeReplicas {
 public:
  /// What is given must outlive it. `group`: of the cluster. `saving`: where most_shards is above 1, configurations have copies that share
  /// their weights, too. `rows`: of the step, typical_step(jobs) or a job's share of a step of several; deployments hold the jobs' longest row,
  /// whether it is there or not.
  NodeReplicas(const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group, const std::vector<JobShape>& jobs,
               const PlanOptions& options, const MemorySaving& saving, std::vector<StepRow> rows);

  const NodeGroup& group() const { return group_; }
  const MemorySaving& saving() const { return saving_; }
  int64_t device_count() const { return group_.count * group_.devices; }

  /// Those that fit, in the order of replica counts.
  const std::vector<Configuration>& configurations() const { return configurations_; }
  /// Every configuration, with why nothing is made from it.
  const std::vector<ConsideredConfiguration>& considered() const { return considered_; }
  /// Says of one of configurations() why it is not for unlike replicas.
  void reject(size_t configuration, const std::string& reason) { considered_[place_in_considered_[configuration]].rejected_for = reason; }
  /// Why there is no deployment of any of them, in words; "": there are some. Without, nothing below may be called.
  const std::string& no_deployment() const { return no_deployment_; }

  int64_t longest_row() const { return longest_; }
  const StepBuckets& buckets() const { return buckets_; }
  /// By configuration, the linear costs that rows are dispatched by. They are those that ReplicaPlanner::estimate has for the slowest of as
  /// many replicas as there is room for.
  const std::vector<BucketCosts>& costs() const { return costs_; }

  /// Whether replicas of these counts hold the longest row.
  bool holds_all_rows(const std::vector<int64_t>& replicas) const;
  /// `<1,1>×4, <8,1>×1`
  std::string text_of(const std::vector<int64_t>& replicas) const;
  RowDispatch dispatched(const std::vector<int64_t>& replicas) const { return dispatch_rows(costs_, replicas, buckets_.sequences); }
  /// The rows of every replica of a dispatch.
  std::vector<std::vector<StepRow>> dealt(const RowDispatch& dispatch) const { return deal_rows(rows_, buckets_, dispatch); }
  /// Seconds of the exchange of gradients, between replicas of these counts that stand on the first nodes.
  double exchange_s(const std::vector<int64_t>& replicas);
  /// The replicas must hold all rows. Remembered: like replicas come with either system.
  const EstimatedDeployment& estimate(const std::vector<int64_t>& replicas);

  /// One of the copies that stand on these devices, with these rows.
  PlannedReplica replica_with(const Configuration& shape, const std::vector<PlannedDevice>& devices, int64_t copy, std::vector<StepRow> rows);
  ReplicaPlanner& planner() { return planner_; }
  const ReplicaPlanner& planner() const { return planner_; }

 private:
  /// Every configuration; one whose order or sharing makes no chains has no longest_row.
  std::vector<ReplicaCandidate> candidates(int64_t most_row_chunk_tokens) const;
  /// candidates() with chunks as large as fit; those that hold the longest row by none of these, with the smallest that planning tries.
  std::vector<ReplicaCandidate> candidates_for_rows();
  /// Why nothing is made of a candidate, in words; "": it fits.
  std::string rejection(const ReplicaCandidate& candidate) const;
  int64_t reach_of(const std::vector<ReplicaCandidate>& candidates) const;
  void find_configurations();
  /// Makes the linear costs of a configuration those of the estimate, with the rows that fit.
  void calibrate(size_t configuration);
  /// Ways to cut the layers, all different: balanced_stages for the largest chunk that fits and, of a pipeline, for microbatch_tokens; where
  /// that is no other (it may overflow), for half of them and so on, down to least_budget.
  std::vector<std::vector<StageShape>> cuts_of(const Configuration& shape);
  /// Of a microbatch where all devices have such replicas: of the token budget that is given, or of enough_microbatches.
  int64_t microbatch_tokens(const Configuration& shape) const;
  /// Gives the configuration those of its cuts by which slowest_of is the fastest, and returns that one.
  std::optional<ReplicaChoice> cut_layers(size_t configuration, const std::vector<std::vector<StepRow>>& rows, const RowDispatch& dispatch);
  /// The slowest of some replicas of one configuration, estimated, whether it fits or not; nothing where it has no rows.
  std::optional<ReplicaChoice> slowest_of(size_t configuration, const std::vector<std::vector<StepRow>>& rows, const RowDispatch& dispatch);

  const ModelConfig& model_;
  const ClusterSpec& cluster_;
  const NodeGroup& group_;
  const std::vector<JobShape>& jobs_;
  const PlanOptions& options_;
  MemorySaving saving_;
  std::vector<StepRow> rows_;
  int64_t longest_ = 0, step_tokens_ = 0;
  std::string no_deployment_;
  std::vector<Configuration> configurations_;
  std::vector<ConsideredConfiguration> considered_;
  std::vector<size_t> place_in_considered_;  ///< by configuration
  StepBuckets buckets_;
  std::vector<BucketCosts> costs_;
  std::map<std::string, std::vector<StageShape>> stages_;  ///< by configuration
  /// By configuration, where its longest rows are held in the smallest chunks only: the longest that the largest hold.
  std::map<std::string, int64_t> reach_at_any_budget_;
  std::map<size_t, int64_t> exchanged_;                    ///< exchanged_parameters by configuration
  std::map<std::vector<int64_t>, EstimatedDeployment> estimated_;
  ReplicaPlanner planner_;
};

}  // namespace cotune
