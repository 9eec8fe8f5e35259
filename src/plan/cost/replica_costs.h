/// What a parallel configuration of a replica costs on a cluster: LB-4 to LB-6 from the operator list and the cluster file.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "plan/cost/stage_cost.h"
#include "plan/cost/stage_memory.h"
#include "plan/cost/weight_sharding.h"
#include "plan/deployment/configuration.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// Chunks of candidates are multiples of it.
inline constexpr int64_t chunk_step = 64;
inline int64_t whole_chunk_steps(int64_t tokens) { return (tokens + chunk_step - 1) / chunk_step * chunk_step; }

struct ReplicaLimits {
  int64_t most_chunk_tokens = 16384;  ///< a chunk needs no more even where memory would allow it
  int64_t most_row_tokens = 0;        ///< nor does a row, which needs as many as a chunk at least
  /// Of the chunks that a longer row is cut into; no more than fit as chunk_tokens.
  int64_t most_row_chunk_tokens = std::numeric_limits<int64_t>::max();
  int64_t most_devices = 64;          ///< of one replica
  std::vector<int64_t> tensor_degrees;  ///< that are looked at; empty: all
  int64_t pipeline_stages = 0;        ///< the only number of stages that is looked at, wherever replicas of it stand; 0: all
  bool has_all_sizes = false;         ///< sizes are all that stand on the nodes, in place of the usual ones
  bool may_be_sequence_parallel = false;  ///< with tensor parallelism each also so that its ranks divide the tokens, too
                                          ///< (schedule/sequence_parallel.h)
  int64_t most_shards = 1;            ///< copies that may share one set of weights: 1, 2, 4, …
  double gather_overlap = WeightSharding{}.overlap;
  bool recompute = false;             ///< StageMachine::recompute
};

/// One candidate, with the memory of its fullest stage at its chunk size, or for 64 tokens where these do not fit.
struct ReplicaCandidate {
  Configuration configuration;  ///< chunk_tokens 0: not even the least chunk fits
  StageMemory memory;
  StageMemory row_memory;       ///< of the fullest stage with the longest row that fits as its chunks and nothing else under way; as `memory`
                                ///< where no chunk fits
  double chunk_s = 0;           ///< seconds of the slowest stage for such a chunk of one row, forward and backward; 0: it has no price
  Overflow overflow;            ///< of chunk_tokens 0
  std::string reason;           ///< of chunk_tokens 0: which stage and term overflow, in words
};

/// Every <TP, PP> on like devices: TP divides the model (can_be_sharded), PP is at most the layers, and TP·PP is a usual size of
/// replicas on these nodes (is_usual_size), or with has_all_sizes any (stands_on_nodes). chunk_tokens is the most that
/// leaves every stage within the device's usable memory under 1F1B (S − s chunks in flight), longest_row with one row alone, of such chunks (or of
/// most_row_chunk_tokens, whose workspace is smaller) where it is longer than one, in steps of 64 tokens.
/// With may_be_sequence_parallel each of TP above 1 is followed by the one whose ranks divide the tokens, too.
/// Each of them also with its weights sharded over 2, 4, … up to most_shards copies, where these fit most_devices: gathered
/// over the node's link where all copies are in one node, else over the network.
/// The chunk's tokens are shared out among the jobs by their shares of the tokens of a step. `measured`: as in StageMachine; configurations
/// of a tensor-parallel degree that it is not of (MeasuredTimes::is_of) have no chunk, and that as their reason.
std::vector<ReplicaCandidate> replica_candidates(const ModelConfig& model, const std::vector<JobShape>& jobs,
                                                 const ClusterSpec& cluster, const NodeGroup& group,
                                                 const std::string& dtype, const ReplicaLimits& limits = {},
                                                 const MeasuredTimes* measured = nullptr);

}  // namespace cotune
