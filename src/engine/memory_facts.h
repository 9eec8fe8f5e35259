#pragma once

#include <ATen/core/Tensor.h>

#include "kernels/float_parts.h"
#include "schedule/memory/memory_facts.h"

namespace cotune {

/// How this process holds things computed in `compute` on `device`: whether our kernels run there, in how many bf16 parts
/// f32 weights stand where products take parts, how large a chunk of logits the head makes, and how many threads the
/// calling thread computes with. What stays (weight_bytes) is the caller's to add.
MemoryFacts memory_facts(at::ScalarType compute, at::Device device,
                         int weight_parts = kernels::largest_part_count);

}  // namespace cotune
