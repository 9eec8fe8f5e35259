/// Inside the memory model: what our kernels of attention work in.
#pragma once

#include <cstdint>

#include "schedule/memory_facts.h"

namespace cotune {

/// Of one thread in forward or backward of a call whose longest row has so many tokens up to the end of its part there, those of earlier parts
/// included: attention_forward_scratch_bytes and attention_backward_scratch_bytes of kernels/attention.h. 0 where ATen computes.
int64_t attention_scratch_bytes(const ModelConfig& config, int64_t row_tokens, Direction direction, const MemoryFacts& facts);

}  // namespace cotune
