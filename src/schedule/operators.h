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

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "jobs/job.h"
#include "jobs/projection.h"
#include "model/config/model_config.h"
#include "model/config/tensor_shard.h"
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

/// The adapter of one job at one projection, as the cost model sees it.
struct AdapterShape {
  int32_t job = 0;
  AdapterMethod method = AdapterMethod::lora;
  int64_t layer = 0;
  Projection projection = Projection::q;
  int64_t width = 0;    ///< LoRA rank, bottleneck size; 0 for diff pruning
  int64_t entries = 0;  ///< diff pruning: kept entries
  bool drops = false;   ///< LoRA with dropout: its input is masked
  bool operator==(const AdapterShape&) const = default;
};

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

/// Costs from first principles. T tokens of the microbatch, n of one job; sizes divided by the tensor-parallel degree on
/// the side that is split (out of q, k, v, gate, up and the head; in of o and down; heads); e element size, a the size
/// of accumulations (4, or 8 for f64). flops:
///   frozen products, forward or input gradient    2·T·in·out
///   attention                                     4·pairs·heads·head_dim; backward 2.5 times that (scores again, dV, dP,
///                                                 dQ, dK: five products for two)
///   LoRA                                          2·n·r·(in + out) in each of forward, backward and adapter gradient
///   bottleneck                                    4·n·width·out in each of the three
///   diff pruning                                  2·n·entries in each of the three
///   norms 4·T·hidden, backward 8·T·hidden; swiglu 5·T·intermediate, backward 12·T·intermediate (its y again included)
///   head 4·labelled·hidden·vocabulary + 5·labelled·vocabulary + 12·labelled·hidden; loss_head 2·… + 3·… + 4·…
/// With is_sequence_parallel T and n are of a slice at norms, bottlenecks, adapter gradients of q, k, v, gate and up, and at the gathers, which else
/// cost nothing.
/// Where X_proj_backward is absent, the adapter gradient adds the half of the adapter's backward that makes g.
/// bytes_moved: frozen weights once, operands and results once; the residual stream with a bytes an element.
struct OperatorCost {
  double flops = 0;
  double bytes_moved = 0;      ///< weights and activations read and written once
  int64_t bytes_saved = 0;     ///< kept from forward for backward
  int64_t frozen_calls = 0;    ///< calls of frozen products: 1 per operator that has one (head: 2), whatever the jobs
  int64_t adapter_calls = 0;   ///< grouped adapter calls: one per method present, whatever the jobs
  OperatorCost& operator+=(const OperatorCost& other);
};

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

/// Cost of one operator. `element_size`: bytes of the compute dtype.
OperatorCost operator_cost(const ModelConfig& config, const StageShape& stage, const Operator& op,
                           const MicrobatchCounts& counts, int64_t element_size);

/// Sum over a list.
OperatorCost total_cost(const ModelConfig& config, const StageShape& stage, const std::vector<Operator>& operators,
                        const MicrobatchCounts& counts, int64_t element_size);

/// Of an element of what is accumulated, and of the residual stream: f32, or f64 under f64. The compute dtype's has element_size.
constexpr int64_t accumulation_bytes(int64_t element_size) { return element_size > 4 ? element_size : 4; }

/// What the engine keeps of one forward operator until its backward, bytes (0 unless op.keeps):
///   attention_norm  T·(hidden·e + a)     layer input, 1/rms
///   qkv_proj        T·(q + 2·kv)·e       after rotation
///   attention       T·(q·e + heads·a)    output, log-sum-exp
///   mlp_norm        T·(hidden·e + a)     stream after attention, 1/rms
///   gate_up_proj    T·2·intermediate·e; models without a gate T·intermediate·e
///   down_proj       T·hidden·a           in the last layer of the stage with the head: the head's input
///   LoRA, at its projection        n·padded(r)·e
///   bottleneck, at its projection  n·(out + padded(width))·e
/// With is_sequence_parallel T and n are those of the largest slice at attention_norm, mlp_norm, down_proj and bottlenecks, as if each job's rows
/// were spread evenly.
/// padded: up to a multiple of 32 where our kernels run (not f64). The portable path keeps the width itself; these are
/// then upper bounds.
int64_t saved_bytes(const ModelConfig& config, const StageShape& stage, const Operator& op,
                    const MicrobatchCounts& counts, int64_t element_size);

}  // namespace cotune
