/// A plan: what runs where, as data. Plain values; JSON in and out is plan_json.h, finding the best one
/// make_plan.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "jobs/enum_names.h"
#include "jobs/job.h"
#include "model/config/model_config.h"
#include "plan/cost/stage_memory.h"
#include "plan/deployment/system_deployments.h"
#include "plan/shapes/cluster.h"
#include "plan/shapes/pipeline_order.h"
#include "plan/shapes/typical_step.h"
#include "schedule/operators.h"

namespace cotune {

template <>
inline constexpr std::array<std::string_view, 4> enum_names<System>{"task-fused", "task-sequential",
                                                                    "lobra-sequential", "lobra"};

/// One stage of a replica: layers, and the ranks that hold them. All its ranks are predicted alike.
struct PlannedStage {
  StageShape shape;                    ///< layer range, embedding, head, tensor-parallel degree
  std::vector<StageShape> further;     ///< interleaved: the further runs of layers of its ranks, ascending; on every stage as many
  std::vector<PlannedDevice> devices;  ///< of tensor-parallel rank 0, 1, …: rank s·TP + i of the replica
  double busy_s = 0;                   ///< predicted: computing, per step
  StageMemory memory;                  ///< predicted peak of one rank
  bool operator==(const PlannedStage&) const = default;

  /// All runs of layers, ascending.
  std::vector<StageShape> chunks() const;
  bool holds(int64_t layer) const;
};

struct PlannedReplica {
  int64_t tensor_parallel = 1;
  bool is_sequence_parallel = false;  ///< its tensor-parallel ranks divide the tokens, too (schedule/sequence_parallel.h); its stages say so as well
  int64_t token_budget = 0;  ///< tokens of a microbatch; a longer row is a chain of microbatches
  int64_t longest_row = 0;   ///< tokens: no longer row is sent here
  int64_t shards = 1;        ///< replicas in a row, this one among them, that share one set of frozen weights
  int64_t least_microbatches = 1;  ///< order split: above 1, what a step of each hybrid task is cut into at least
  std::vector<PlannedStage> stages;
  std::vector<std::vector<int32_t>> hybrid_tasks;  ///< jobs that share microbatches, by index; ascending
  std::vector<std::vector<int32_t>> buckets;       ///< hybrid tasks of one pipeline clock, by index (plan/cost/overlapped_stage.h)
  // Predicted, of the typical step:
  std::vector<StepRow> rows;  ///< those that it gets, by job, then ascending; none: its stages' memory is what stays between steps
  int64_t microbatches = 0;
  int64_t tokens = 0;            ///< of the rows
  int64_t processed_tokens = 0;  ///< with pads
  double seconds = 0;            ///< per step, without the exchange of gradients
  double bubble = 0;             ///< idle share of its devices while it computes
  std::vector<double> backward_ratio;  ///< per bucket: seconds of all backwards over those of all forwards
  bool operator==(const PlannedReplica&) const = default;

  int64_t pipeline_stages() const { return static_cast<int64_t>(stages.size()); }
  int64_t devices() const { return tensor_parallel * pipeline_stages(); }
  /// Runs of layers that each of its ranks holds.
  int64_t chunks() const { return 1 + static_cast<int64_t>(stages.front().further.size()); }
  /// Runs of layers from the embedding to the head: number k is on stage k mod pipeline_stages().
  std::vector<StageShape> layer_runs() const;
  /// Buckets, by index, whose backwards take more than uneven_backward times as long as their forwards: MuxTune's template, which takes both as
  /// equal, is far from what they do (computation homogeneity, §3.4.1; MX-15).
  std::vector<size_t> uneven_buckets() const;
};

inline constexpr double uneven_backward = 1.3;

/// One step of every job.
struct PredictedStep {
  double seconds = 0;     ///< the slowest replica, and the exchange of adapter gradients between replicas
  double exchange_s = 0;  ///< of it: the exchange
  int64_t tokens = 0;     ///< of the examples
  int64_t processed_tokens = 0;  ///< with pads
  double device_seconds = 0;     ///< all devices of the plan's kind of nodes · seconds (LB-7: idle devices count)
  double bubble = 0;             ///< idle share of the replicas' devices while their replica computes
  double idle = 0;  ///< idle share of these devices until the step ends: bubbles, imbalance, unused devices
  int64_t fullest_bytes = 0;  ///< of any device
  double cost = 0;            ///< device hours · price, in the cluster file's currency; 0: no price
  bool operator==(const PredictedStep&) const = default;

  double tokens_per_s() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

struct Plan {
  int64_t format = 1;
  std::string planner;     ///< version of the planner that made it
  std::string model_hash;  ///< hash_of
  std::string cluster_hash;
  std::string profile_hash;  ///< of the profile.json that costs come from; "": roofline of the cluster file
  std::string dtype;         ///< compute dtype: bfloat16, float32
  std::vector<std::string> jobs;  ///< names; everywhere else a job is its index here
  System deployment = System::lobra;
  Sharing sharing = Sharing::hybrid;
  Layout layout = Layout::ragged;
  int64_t chunk_size = 64;  ///< layout chunked
  PipelineOrder order = PipelineOrder::automatic;
  Recompute recompute = Recompute::never;  ///< always: activations are made again before their backward
  std::vector<PlannedReplica> replicas;
  PredictedStep predicted;
  bool operator==(const Plan&) const = default;
};

/// What a plan's costs depend on, as 32 hexadecimal digits.
std::string hash_of(const ModelConfig& model);
std::string hash_of(const ClusterSpec& cluster);

/// Replicas by shape in words, largest first, by configuration_name: `<4,2>×1, <1,1>×8`; `<1,1>/4×2`: eight of them, four to a set of weights.
std::string replicas_text(const Plan& plan);

}  // namespace cotune
