/// What planning chooses among, each with its prediction and what speaks against it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "plan/cost/stage_memory.h"
#include "plan/plan.h"
#include "plan/shapes/typical_step.h"

namespace cotune {

/// A <TP, PP>, or <TP, PP>/Z, on one kind of nodes.
struct ConsideredConfiguration {
  std::string nodes;
  int64_t tensor_parallel = 1, pipeline_stages = 1;
  bool is_sequence_parallel = false;     ///< tensor-parallel ranks divide the tokens, too
  int64_t shards = 1;              ///< copies that share one set of frozen weights
  bool recompute = false;
  int64_t chunk_tokens = 0;        ///< most tokens of a microbatch that fit; 0: none do
  int64_t longest_row = 0;         ///< tokens: the longest that fits, a chain of microbatches where it is longer than these
  double tokens_per_device_s = 0;  ///< of full chunks of rows of the mean length; 0: none fit
  StageMemory memory;              ///< of the fullest stage with such a chunk; with one of 64 tokens where these do not fit
  double chunk_s = 0;              ///< estimate: of the slowest stage for such a chunk (ReplicaCandidate::chunk_s); 0: it has no price
  Overflow overflow;               ///< where no chunk fits
  std::string rejected_for;        ///< "": deployments are made from it
};

/// Replica counts on one kind of nodes.
struct ConsideredDeployment {
  std::string nodes;
  System system = System::lobra;
  bool recompute = false;
  std::string replicas;    ///< `<1,1>×4, <8,1>×1`
  double dispatch_s = 0;   ///< slowest replica by the linear model that dispatch balances (LobRA's Eq. 3, calibrated by estimates)
  /// Estimate: slowest replica of each configuration, ordered but not simulated. Decides what is simulated in full.
  double estimated_s = 0;
  int64_t estimated_bytes = 0;   ///< of any device in it
  std::string estimate_constraint;  ///< what does not fit in it; "": it fits. estimated_s is then the least that it could take
  double simulated_s = 0;      ///< best step simulated in full; 0: not simulated, or nothing fitted
  int64_t simulated_bytes = 0; ///< of any device in that step; of the first that was simulated where none fits; 0: not simulated
  std::string constraint;      ///< what does not fit in the first that was simulated, where none fits
  Overflow overflow;           ///< of `constraint`, or of estimate_constraint where nothing was simulated
  std::string rejected_for;    ///< the constraint, or how much longer it takes, by its estimate or simulated; "": the plan has it
};

/// A deployment under a sharing policy and a pipeline order.
struct Alternative {
  std::string nodes;  ///< the kind that it stands on
  System deployment = System::lobra;
  Sharing sharing = Sharing::hybrid;
  PipelineOrder order = PipelineOrder::automatic;
  bool recompute = false;
  bool shards_weights = false;  ///< some replicas share their frozen weights
  std::vector<Plan> plans;  ///< one, or one per job in turn; empty where nothing can be deployed
  /// Of a step of every job. Of what does not fit: what it would take with memory enough, as it was tried last (in the smallest
  /// microbatches); all zero where there are no plans.
  PredictedStep predicted;
  bool is_bound = false;     ///< some replica is not ordered, for not one microbatch fits: it takes at least so long (ReplicaPrediction)
  std::string constraint;    ///< what does not fit, in words; "": it fits
  Overflow overflow;         ///< of the stage that it names, the fullest of all
  std::string rejected_for;  ///< the constraint, or by how much it is slower; "": this one was chosen

  bool fits() const { return constraint.empty(); }
};

/// How the jobs of a replica of the plan could share microbatches otherwise, with its token budget and order.
struct ConsideredGrouping {
  size_t replica = 0;  ///< of the plan
  std::vector<std::vector<int32_t>> hybrid_tasks, buckets;
  int64_t least_microbatches = 1;  ///< of a step of each hybrid task (PlannedReplica)
  double seconds = 0;         ///< of the replica, whether it fits or not
  bool is_bound = false;      ///< at least so long: not one microbatch fits (ReplicaPrediction)
  int64_t fullest_bytes = 0;  ///< of any device
  std::string constraint;     ///< what does not fit
  Overflow overflow;          ///< of it
  std::string rejected_for;   ///< the constraint, or by how much it is slower; "": the plan has it
};

/// One job after the other: of each job's own alternatives (of one system, with equal policies and orders) the sums, but for seconds where a job
/// has no plan. An order for few microbatches need not be among each job's: a job that has none, or is faster in the default order, runs in that, and
/// there is such a sum where some job has it. `names`: the jobs'. `devices`: of the nodes. A job that does not fit lends its constraint, with its
/// name.
std::vector<Alternative> sums_in_turn(const std::vector<std::vector<Alternative>>& of_jobs,
                                      const std::vector<std::string>& names, int64_t devices);

/// task_sequential and lobra_sequential: for comparison, never chosen.
bool is_sequential(System system);

/// The shortest predicted step of those that fit and run all jobs at once; among those within a thousandth of it one of
/// sharing `hybrid` before others, then one in another order than gpipe and 1f1b, then the one with the least memory; nothing where none
/// fits. Writes into every other why it was not taken.
std::optional<size_t> choose(std::vector<Alternative>& alternatives);

/// Writes into every deployment that was simulated why it was not taken: its constraint, or how much longer than the chosen one it takes.
/// `chosen`: nullptr where nothing fits.
void judge(std::vector<ConsideredDeployment>& deployments, const Alternative* chosen);

}  // namespace cotune
