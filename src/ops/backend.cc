#include "ops/backend.h"

#include <atomic>

#include "base/error.h"

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

GpuKernels* gpu_kernels_for(at::ScalarType dtype, at::Device device) {
  if (!device.is_cuda() || portable_scopes.load(std::memory_order_relaxed) > 0) return nullptr;
  return dtype == at::kBFloat16 || dtype == at::kFloat ? active_gpu_kernels() : nullptr;
}

GpuType gpu_type(at::ScalarType dtype) {
  COTUNE_CHECK(dtype == at::kBFloat16 || dtype == at::kFloat, "no GPU kernels for {}", c10::toString(dtype));
  return dtype == at::kBFloat16 ? GpuType::bf16 : GpuType::f32;
}

PortableKernels::PortableKernels() { ++portable_scopes; }
PortableKernels::~PortableKernels() { --portable_scopes; }

at::ScalarType accumulation_dtype(at::ScalarType compute) { return compute == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace cotune
