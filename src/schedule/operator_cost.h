/// What operators cost, and what they keep for the backward.
#pragma once

#include <cstdint>
#include <vector>

#include "model/config/model_config.h"
#include "schedule/operators.h"

namespace cotune {

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

/// Cost of one operator. `element_size`: bytes of the compute dtype.
OperatorCost operator_cost(const ModelConfig& config, const StageShape& stage, const Operator& op,
                           const MicrobatchCounts& counts, int64_t element_size);

/// The adapters' part of it: flops, bytes_moved and adapter_calls.
OperatorCost adapter_cost(const ModelConfig& config, const StageShape& stage, const Operator& op,
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
