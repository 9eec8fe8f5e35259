#include "engine/memory_facts.h"

#include "ops/backend.h"

namespace cotune {

MemoryFacts memory_facts(at::ScalarType compute, at::Device device, int weight_parts) {
  const kernels::Isa isa = kernel_isa(compute, device);
  return {.element_size = static_cast<int64_t>(c10::elementSize(compute)),
          .packed = isa != kernels::Isa::none,
          .parts = isa == kernels::Isa::amx_f32 ? weight_parts : 0};
}

}  // namespace cotune
