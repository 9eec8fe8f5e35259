/// What should run where: the best plan for given jobs and machines, with every alternative that was looked
/// at, what it is predicted to take, and what speaks against it. Pure: equal inputs give equal answers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/cost/replica_costs.h"
#include "plan/cost/replica_prediction.h"
#include "plan/deployment/deployment.h"
#include "plan/plan.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

struct PlanOptions {
  std::string dtype = "bfloat16";
  Layout layout = Layout::ragged;
  int64_t chunk_size = 64;  ///< layout chunked
  /// What is tried. A plan is chosen among task_fused and lobra; the sequential ones are for comparison.
  std::vector<System> deployments = {System::task_fused, System::lobra};
  std::vector<Sharing> sharing = {Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid};
  std::vector<PipelineOrder> orders = {PipelineOrder::gpipe, PipelineOrder::one_f_one_b,
                                       PipelineOrder::automatic};
  int64_t rounds = 2;                 ///< successive steps that are simulated; seconds are of one of them
  int64_t length_buckets = 16;        ///< R, of dispatch
  int64_t simulated_deployments = 3;  ///< per kind: as many of the best by closed form are simulated
  ReplicaLimits replicas;             ///< most_shards must be 1
  DeploymentLimits deployment;
  const MeasuredTimes* measured =
      nullptr;               ///< of a profile of the devices, in place of the roofline; must outlive the call
  std::string profile_hash;  ///< of the profile; "" where `measured` is null
};

/// A <TP, PP> on one kind of nodes.
struct ConsideredConfiguration {
  std::string nodes;
  int64_t tensor_parallel = 1, pipeline_stages = 1;
  int64_t chunk_tokens = 0;        ///< most tokens of a microbatch that fit; 0: none do
  double tokens_per_device_s = 0;  ///< of full chunks of rows of the mean length; 0: none fit
  StageMemory memory;              ///< of the fullest stage with such a chunk
  std::string rejected_for;        ///< "": deployments are made from it
};

/// Replica counts on one kind of nodes.
struct ConsideredDeployment {
  std::string nodes;
  System system = System::lobra;
  std::string replicas;    ///< `<1,1>×4, <8,1>×1`
  double dispatch_s = 0;   ///< slowest replica by the linear model that dispatch balances (LobRA's Eq. 3)
  double simulated_s = 0;  ///< best simulated step; 0: not simulated, or nothing fitted
};

/// A deployment under a sharing policy and a pipeline order.
struct Alternative {
  System deployment = System::lobra;
  Sharing sharing = Sharing::hybrid;
  PipelineOrder order = PipelineOrder::automatic;
  std::vector<Plan> plans;  ///< one, or one per job in turn; empty where nothing can be deployed
  std::vector<std::vector<std::vector<StepRow>>>
      rows;                  ///< of each plan's replicas; jobs by their index in that plan
  PredictedStep predicted;   ///< of a step of every job; also of what does not fit, as far as it is known
  std::string constraint;    ///< what does not fit, in words; "": it fits
  std::string rejected_for;  ///< the constraint, or by how much it is slower; "": this one was chosen

  bool fits() const { return constraint.empty(); }
};

struct PlanningResult {
  std::vector<Alternative>
      alternatives;              ///< every deployment × sharing policy × order, its best replicas each
  std::optional<size_t> chosen;  ///< in alternatives; none where nothing fits
  std::vector<ConsideredConfiguration> configurations;
  std::vector<ConsideredDeployment> deployments;
  Deployment lobra;  ///< counts of plan_deployment for all jobs together, of the chosen nodes (or the first)
  std::string advice;  ///< where nothing fits: what would

  const Plan* plan() const { return chosen ? &alternatives[*chosen].plans.front() : nullptr; }
};

/// 1. Configurations: replica_candidates on each kind of nodes.
/// 2. Deployments for the typical step, its rows in length buckets: like replicas (task_fused) of each
/// configuration that
///    holds the longest row, and the best of plan_deployment (lobra) over the configurations that
///    propose_configurations keeps. Stages are cut by partition_stages where that is faster than even stages
///    and fits.
/// 3. For the best of these, rows are dealt to replicas as dispatch says, packed under each sharing policy,
/// and every
///    replica simulated under each order. A pipeline's token budget is halved as long as that makes it
///    faster, any replica's until it fits. Under `hybrid` the hybrid tasks are the fastest of: all jobs, each
///    job by itself, and those of choose_hybrid_tasks.
/// 4. The shortest predicted step is chosen, among those within a thousandth the one with the least memory.
/// All replicas stand on one kind of nodes: the kind with the shortest step.
/// The sequential systems run the same for one job after the other, sharing `separate`; their seconds add up.
/// Throws UserError for a dtype that a device has no rate for. `jobs` must not be empty.
PlanningResult make_plan(const ModelConfig& model, const ClusterSpec& cluster,
                         const std::vector<JobShape>& jobs, const PlanOptions& options = {});

/// The replicas of a plan as models to predict with, in its order. `jobs`: those that the plan names, in its
/// order.
std::vector<ReplicaModel> replica_models(const Plan& plan, const ModelConfig& model,
                                         const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                                         const MeasuredTimes* measured = nullptr);

}  // namespace cotune
