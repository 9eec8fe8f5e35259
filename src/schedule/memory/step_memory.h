/// The counted bytes of one step, exactly: every tensor that the engine's operators allocate on our kernels, in their order,
/// and what attention works in (MuxTune §3.3, Eq. 5, without its fitted constants). Where peak_memory.h bounds every plan that
/// jobs can have, this is what one plan takes.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/memory/memory_facts.h"
#include "schedule/step_operators.h"

namespace cotune {

/// Most bytes at once within a round, beyond what stays between rounds (weights, adapters, gradients, optimizer). Each
/// kind by itself, and of all together.
struct StepMemory {
  int64_t activations = 0;
  int64_t chain_kv = 0;
  int64_t workspace = 0;
  int64_t logits = 0;
  int64_t together = 0;
  bool operator==(const StepMemory&) const = default;
};

/// Nothing where operators are ATen's (facts.packed false, f64, sizes that are no multiples of 32, heads that our attention does
/// not take): their temporaries are not ours to know; peak_memory.h bounds them.
std::optional<StepMemory> step_memory(const ModelConfig& config, const PlannedStep& step, const MemoryFacts& facts);

}  // namespace cotune
