#pragma once

#include "adapter/adapter.h"

namespace cotune {

/// Diff pruning (Guo et al. 2021, as MuxTune §3.2 uses it: a fixed binary mask): y += x·(mask ⊙ Δ), Δ zero at start.
/// The mask keeps `density` of every target weight: the entries whose gradient, accumulated over the job's first
/// `selection_batches` batches at Δ = 0, is largest in magnitude. Only kept entries have values, gradients, optimizer
/// state and a place in the file. Selection accumulates dense gradients, for a few layers per pass so that they stay
/// within selection_bytes; every pass sees the same batches.
///
/// In a tensor-parallel group each rank has the entries of its own part of the weight: what they add to the output (or, where
/// outputs are divided, to dx) is a summand of the operator's own all-reduce. Selection chooses among the whole weight's.
std::unique_ptr<Adapter> make_diff_pruning(const ModelConfig& config, AdapterSetup setup);

/// Dense gradients of one selection pass take at most this, and at least one layer's.
inline constexpr int64_t selection_bytes = 64 << 20;

const Method& diff_pruning_method();

}  // namespace cotune
