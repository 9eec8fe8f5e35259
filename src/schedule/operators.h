/// The model as an ordered list of operators, known without weights: what the engine executes, what the cost, memory
/// and launch models sum over.
///
/// Forward of a layer (→ marks a cut where tensor parallelism communicates):
///   attention_norm, qkv_proj, attention, o_proj →, mlp_norm, gate_up_proj, swiglu, down_proj →
/// Backward of a layer:
///   down_proj_backward, swiglu_backward, down_adapter_gradient, gate_up_proj_backward →, mlp_norm_backward,
///   gate_up_adapter_gradient, o_proj_backward, o_adapter_gradient, attention_backward, qkv_proj_backward →,
///   attention_norm_backward, qkv_adapter_gradient
/// Above, an X_adapter_gradient operator uses what X_proj_backward made of the incoming gradient (the low-rank g = dy·Bᵀ
/// and the like). Where the input gradient of X is not needed (X is the lowest adapted operator of the lowest adapted
/// layer), X_proj_backward is absent and the X_adapter_gradient makes it itself, and for down also the product's input
/// (swiglu again); it has `without_input_gradient` set.
/// The head (final norm, logits, cross-entropy and their backward, labelled rows and pads only) is the first operator of the
/// backward list, so that no logits live between forward and backward; evaluation ends with loss_head instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/config/model_config.h"
#include "model/config/tensor_shard.h"
#include "schedule/adapter_shape.h"
#include "schedule/microbatch.h"

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
  // Of ranks that divide the tokens (sequence_parallel.h).
  down_error_gather,     ///< the gradient of down's output, all rows
  gate_up_input_gather,  ///< the normalised input again, all rows
  o_error_gather,
  qkv_input_gather,
};

std::string to_string(OperatorKind kind);

enum class Direction { forward, backward, evaluate };

/// The slice of the model that one rank holds.
struct StageShape {
  int64_t first_layer = 0;
  int64_t last_layer = 0;  ///< one past the last
  bool has_embedding = true;
  bool has_head = true;
  int64_t tensor_parallel = 1;
  bool is_sequence_parallel = false;  ///< where layers are not divided its ranks have slices of the tokens (sequence_parallel.h)
  bool operator==(const StageShape&) const = default;
};

StageShape whole_model(const ModelConfig& config);

/// What the sizes of a microbatch are to its operators.
struct MicrobatchCounts {
  int64_t tokens = 0;            ///< rows of the activations, pads included
  int64_t labelled = 0;          ///< rows that enter the head: those that predict a learned token, and pads
  int64_t attention_pairs = 0;   ///< Σ over row parts of (query, key) pairs under the causal mask, pads included
  std::vector<int64_t> job_tokens;  ///< rows per job, indexed by job
  int64_t row_parts = 0;         ///< runs of tokens of one row: what attention is computed over
  std::vector<int64_t> job_atoms;   ///< atoms per job: each adds to the adapter's gradients by itself
  bool operator==(const MicrobatchCounts&) const = default;
};

/// Counts of a microbatch. A row part of n tokens (with pads) after p earlier ones has n·p + n·(n+1)/2 pairs. labelled: without pads.
MicrobatchCounts count_microbatch(const Microbatch& microbatch, int64_t labelled);

struct Operator {
  OperatorKind kind = OperatorKind::embedding;
  int64_t layer = -1;                ///< -1: outside the layers
  std::vector<int32_t> predecessors; ///< indices in the same list
  bool communicates = false;         ///< a collective over the tensor-parallel group follows: an all-reduce, or collective_of (sequence_parallel.h)
  std::vector<AdapterShape> adapters;///< of the jobs at this operator's projections (forward, backward and gradient)
  bool keeps = false;                ///< forward operators: results are kept for the backward list (saved_bytes)
  bool without_input_gradient = false;  ///< adapter gradient operators: see above
  std::string name() const;          ///< `layers.3.qkv_proj`
};

/// The list for one stage. `adapters`: those of the whole model, of every job in the microbatch. In the backward list
/// nothing is computed that nobody needs: layers below the lowest adapted one are absent, and so are adapter_gradient
/// operators without adapters and, in the lowest layer, the input gradients below its first adapter. Without any adapter
/// the backward list is the head alone. evaluate: the forward list and loss_head. Forward operators keep their results
/// in the lowest adapted layer and above; under evaluate none does.
/// `communicates` is set at the cuts when tensor_parallel > 1; with is_sequence_parallel at those of sequence_parallel.h. Embedding and head,
/// which communicate inside themselves then, are not marked. Throws InternalError where can_be_sharded is false
/// (model/config/tensor_shard.h).
std::vector<Operator> stage_operators(const ModelConfig& config, const StageShape& stage,
                                      const std::vector<AdapterShape>& adapters, Direction direction);

}  // namespace cotune
