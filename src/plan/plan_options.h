/// What planning tries, and within which limits.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <string>
#include <vector>

#include "plan/cost/replica_costs.h"
#include "plan/deployment/deployment.h"
#include "plan/plan.h"

namespace cotune {

/// Less memory for more time.
struct MemorySaving {
  bool recompute = false;   ///< plan/cost/recomputation.h
  int64_t most_shards = 1;  ///< above 1: frozen weights sharded over 2, 4, … up to so many copies (plan/cost/weight_sharding.h)
  bool operator==(const MemorySaving&) const = default;
};

struct PlanOptions {
  std::string dtype = "bfloat16";
  Layout layout = Layout::ragged;
  int64_t chunk_size = 64;  ///< layout chunked
  /// What is tried. A plan is chosen among task_fused and lobra; the sequential ones are for comparison.
  std::vector<System> deployments = {System::task_fused, System::lobra};
  bool may_idle = true;  ///< whether deployments that leave devices idle without need are tried: fewer replicas, which exchange gradients sooner
  std::vector<Sharing> sharing = {Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid};
  int64_t token_budget = 0;  ///< above 0: of every replica (run.token_budget); longer rows are chains. 0: found
  std::vector<PipelineOrder> orders = {PipelineOrder::gpipe, PipelineOrder::one_f_one_b,
                                       PipelineOrder::automatic};
  /// For pipelines of few microbatches: each tried with the last sharing policy of the above on the deployments that are
  /// simulated in full, where some replica suits it (ReplicaPlanner::plan); no alternative where none does. Not with savings.
  std::vector<PipelineOrder> orders_for_few = {PipelineOrder::interleaved, PipelineOrder::split};
  int64_t rounds = 2;                 ///< successive steps that are simulated; seconds are of one of them
  int64_t length_buckets = 16;        ///< R, of dispatch
  int64_t threads = 1;                ///< that make_plan and node_changes take at most; what they find does not depend on it
  int64_t simulated_deployments = 3;  ///< per kind: as many of the best by their estimates are simulated in full; on few
                                      ///< devices 32 / devices more, under the last sharing policy and order of the above; a
                                      ///< policy that fits on none of these is tried on up to eight more
  ReplicaLimits replicas = {.may_be_sequence_parallel = true};  ///< of plans that save no memory: recompute and most_shards are not read
  Recompute recompute = Recompute::automatic;  ///< automatic: as a saving; always: in every plan; never: in none
  /// How memory is saved at the cost of time, each tried with sharing hybrid (or the one that is given) in the default order beside the plans
  /// without.
  std::vector<MemorySaving> savings = {{.recompute = true}, {.most_shards = 16}, {.recompute = true, .most_shards = 16}};
  DeploymentLimits deployment = {.dealing = Dealing::by_row, .gap = 0.005};
  const MeasuredTimes* measured =
      nullptr;               ///< of a profile of the devices, in place of the roofline; must outlive the call. Links are the cluster's:
                             ///< with_measured_links gives it those of the profile
  std::string profile_hash;  ///< of the profile; "" where `measured` is null
  const std::atomic<bool>* stop = nullptr;  ///< true: planning ends soon, by PlanningStopped, for nobody waits for it; must outlive the call
};

/// PlanOptions::stop was set.
class PlanningStopped : public std::exception {
 public:
  const char* what() const noexcept override { return "planning was stopped"; }
};

}  // namespace cotune
