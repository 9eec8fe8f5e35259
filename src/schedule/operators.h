/// The model as an ordered list of operators, known without weights: what the engine executes, what the cost, memory
/// and launch models sum over.
///
/// Forward of a layer (→ marks a cut where tensor parallelism communicates):
///   attention_norm, qkv_proj, attention, o_proj →, mlp_norm, gate_up_proj, swiglu, down_proj →
/// Backward of a layer:
///   down_proj_backward, swiglu_backward, down_adapter_gradient, gate_up_proj_backward →, mlp_norm_backward,
///   gate_up_adapter_gradient, o_proj_backward, o_adapter_gradient, attention_backward, qkv_proj_backward →,
///   attention_norm_backward, qkv_adapter_gradient
/// The head (final norm, logits, cross-entropy and their backward, labelled rows only) is the first operator of the
/// backward list, so that no logits live between forward and backward; evaluation ends with loss_head instead.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "jobs/job.h"
#include "jobs/projection.h"
#include "model/config/model_config.h"

namespace cotune {

enum class OperatorKind {
  embedding,
  attention_norm,
  qkv_proj,
  attention,
  o_proj,
  mlp_norm,
  gate_up_proj,
  swiglu,
  down_proj,
  loss_head,  ///< forward only: evaluation
  head,       ///< final norm, logits, cross-entropy and the gradient of all of it
  down_proj_backward,
  swiglu_backward,
  down_adapter_gradient,
  gate_up_proj_backward,
  mlp_norm_backward,
  gate_up_adapter_gradient,
  o_proj_backward,
  o_adapter_gradient,
  attention_backward,
  qkv_proj_backward,
  attention_norm_backward,
  qkv_adapter_gradient,
};

std::string to_string(OperatorKind kind);

enum class Direction { forward, backward, evaluate };

/// The adapter of one job at one projection, as the cost model sees it.
struct AdapterShape {
  int32_t job = 0;
  AdapterMethod method = AdapterMethod::lora;
  int64_t layer = 0;
  Projection projection = Projection::q;
  int64_t width = 0;    ///< LoRA rank, bottleneck size; 0 for diff pruning
  int64_t entries = 0;  ///< diff pruning: kept entries
  bool operator==(const AdapterShape&) const = default;
};

/// The slice of the model that one rank holds.
struct StageShape {
  int64_t first_layer = 0;
  int64_t last_layer = 0;  ///< one past the last
  bool has_embedding = true;
  bool has_head = true;
  int64_t tensor_parallel = 1;
  bool operator==(const StageShape&) const = default;
};

/// What the sizes of a microbatch are to its operators.
struct MicrobatchCounts {
  int64_t tokens = 0;            ///< rows of the activations, pads included
  int64_t labelled = 0;          ///< rows that enter the head
  int64_t attention_pairs = 0;   ///< Σ over segments of (query, key) pairs under the causal mask
  std::vector<int64_t> job_tokens;  ///< rows per job, indexed by job
  bool operator==(const MicrobatchCounts&) const = default;
};

struct OperatorCost {
  double flops = 0;
  double bytes_moved = 0;      ///< weights and activations read and written once
  int64_t bytes_saved = 0;     ///< kept from forward for backward
  int64_t frozen_calls = 0;    ///< calls of frozen products: 1 per operator that has one, whatever the jobs
  int64_t adapter_calls = 0;   ///< grouped adapter calls: one per projection and method present, whatever the jobs
  OperatorCost& operator+=(const OperatorCost& other);
};

struct Operator {
  OperatorKind kind = OperatorKind::embedding;
  int64_t layer = -1;                ///< -1: outside the layers
  std::vector<int32_t> predecessors; ///< indices in the same list
  bool communicates = false;         ///< an all-reduce over the tensor-parallel group follows
  std::vector<AdapterShape> adapters;///< of the jobs at this operator's projections
  std::string name() const;          ///< `layers.3.qkv_proj`
};

/// The list for one stage, with the given adapters. In the backward list nothing is computed that nobody needs: layers
/// below the lowest adapted one are absent, and so are adapter_gradient operators without adapters and, in the lowest
/// layer, the input gradients below its first adapter.
std::vector<Operator> stage_operators(const ModelConfig& config, const StageShape& stage,
                                      const std::vector<AdapterShape>& adapters, Direction direction);

/// Cost of one operator. `element_size`: bytes of the compute dtype.
OperatorCost operator_cost(const ModelConfig& config, const StageShape& stage, const Operator& op,
                           const MicrobatchCounts& counts, int64_t element_size);

}  // namespace cotune
