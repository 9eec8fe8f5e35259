#pragma once

#include "adapter/adapter.h"

namespace cotune {

/// Bottleneck adapters (Houlsby et al. 2019; MuxTune §3.2 "adapter tuning"): two per layer, on the outputs y of o_proj
/// and down_proj before the residual is added:
///   h = residual + y + f(y·Dᵀ + b_down)·U + b_up
/// D [size, hidden] starts uniform in ±1/√hidden, U [size, hidden] and both biases at zero: identity at start.
/// f: relu, gelu (exact), silu or tanh.
///
/// It reads the whole of y, so in a tensor-parallel group every rank computes it, on equal bits, after the operator's own
/// all-reduce: dividing its few features among the ranks would take a collective of its own.
std::unique_ptr<Adapter> make_bottleneck(const ModelConfig& config, AdapterSetup setup);

/// Keeps y and z = y·Dᵀ + b_down of the jobs' rows. The input gradient dy + (f'(z) ⊙ (dy·Uᵀ))·D replaces dy before the
/// frozen product's backward.
const Method& bottleneck_method();

}  // namespace cotune
