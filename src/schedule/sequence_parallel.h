/// Sequence parallelism (Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models", §4.2.2): ranks that
/// divide layers have all tokens of a microbatch in products and attention, whose features they divide, and a slice of the tokens between
/// them: in norms, the residual stream and bottleneck adapters. Each all-reduce becomes a reduce-scatter, and an all-gather before the next
/// product; together they are as many bytes.
///
/// Forward of a layer (↧ reduce-scatter, ↥ all-gather):
///   attention_norm ↥, qkv_proj, attention, o_proj ↧, mlp_norm ↥, gate_up_proj, swiglu, down_proj ↧
/// Backward of a layer:
///   down_error_gather ↥, down_proj_backward, swiglu_backward, down_adapter_gradient, gate_up_proj_backward ↧, mlp_norm_backward,
///   gate_up_input_gather ↥, gate_up_adapter_gradient, o_error_gather ↥, o_proj_backward, o_adapter_gradient, attention_backward,
///   qkv_proj_backward ↧, attention_norm_backward, qkv_input_gather ↥, qkv_adapter_gradient
///
/// A product's input is kept as its slice. LoRA's A at q, k, v, gate and up needs it with g = dy·Bᵀ, of which every rank has a summand: g
/// rides on the reduce-scatter of the input's gradient, as a few more columns, and each rank adds what its slice gives. Where no input
/// gradient is made, the adapter gradient itself scatters g. Diff pruning reads the whole input: X_input_gather is there for it alone. An
/// error's gather is absent where only bottlenecks would read it.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/operators.h"

namespace cotune {

/// Where each rank's slice begins, and behind them where the last one ends: [ranks + 1]. All are of ⌈tokens / ranks⌉ but the last ones,
/// which are shorter or empty.
std::vector<int64_t> token_slices(int64_t tokens, int64_t ranks);
/// Among how many ranks a stage divides the tokens; 1 where it does not.
int64_t ranks_with_slices(const StageShape& stage);
/// Tokens of the largest slice; all of them where the stage does not divide them.
int64_t largest_slice(int64_t tokens, int64_t ranks);
int64_t largest_slice(int64_t tokens, const StageShape& stage);

/// How a method fits in: whether it changes an operator's whole output, which is computed in slices; whether its gradients read all rows
/// of an input that is kept in slices; whether of its low-rank gradient every rank has a summand there.
bool adapts_slices(AdapterMethod method);
bool reads_whole_input(AdapterMethod method);
bool sums_low_rank(AdapterMethod method);

/// Values of an adapter on whose gradient every rank of the stage has a summand, added once a job step: LoRA's factor that all have whole,
/// and what adapts slices; 0 of one rank.
int64_t summand_count(const ModelConfig& config, const StageShape& stage, const AdapterShape& adapter);

/// What follows an operator that communicates.
enum class Collective { all_reduce, reduce_scatter, all_gather };
Collective collective_of(const StageShape& stage, const Operator& op);

/// Low-rank columns of the job that has most, on a reduce-scatter of backward: 0 for every other operator.
int64_t riding_columns(const StageShape& stage, const Operator& op);
/// Values of each token that the collective is about.
int64_t collective_columns(const ModelConfig& config, const StageShape& stage, const Operator& op);

}  // namespace cotune
