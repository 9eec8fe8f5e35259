/// What planning tries, and within which limits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/cost/replica_costs.h"
#include "plan/deployment/deployment.h"
#include "plan/plan.h"

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

}  // namespace cotune
