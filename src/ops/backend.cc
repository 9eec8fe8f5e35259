#include "ops/backend.h"

#include <atomic>

namespace cotune {
namespace {
std::atomic<int> portable_scopes{0};
}

kernels::Isa kernel_isa(at::ScalarType dtype, at::Device device) {
  if (!device.is_cpu() || portable_scopes.load(std::memory_order_relaxed) > 0) return kernels::Isa::none;
  if (dtype == at::kBFloat16) return kernels::bf16_isa();
  if (dtype == at::kFloat) return kernels::f32_isa();
  return kernels::Isa::none;
}

PortableKernels::PortableKernels() { ++portable_scopes; }
PortableKernels::~PortableKernels() { --portable_scopes; }

at::ScalarType accumulation_dtype(at::ScalarType compute) { return compute == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace cotune
