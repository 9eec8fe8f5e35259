// The CUDA plugin: torch's CUDA libraries and our kernels come with it, and it answers what the program asks of a CUDA device.

#include <ATen/Context.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/util/Exception.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>

#include "cuda/cuda_kernels.h"
#include "cuda/nccl_groups.h"
#include "device/plugin.h"

namespace cotune {
namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

c10::DeviceIndex index_of(int index) { return static_cast<c10::DeviceIndex>(index); }

bool is_ampere_or_later(int index) {
  int major = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index));
  return major >= 8;
}

class CudaPlugin final : public DevicePlugin {
 public:
  int device_count() noexcept override {
    int count = 0;  // asked of CUDA itself: torch would print a warning where there is none
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
  }

  std::string name(int index) override {
    cudaDeviceProp properties{};
    C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, index));
    return properties.name;
  }

  bool has_bf16(int index) override { return is_ampere_or_later(index); }

  void activate(int index) override {
    // A stream whose work waits for another rank must not hold up streams that share its queue to the device (8 queues by default).
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
    // While one thread asks torch for operators of equal bits (ops/flash_attention.cc), products of another one are asked too, and
    // refuse where cuBLAS could take more workspaces than one stream's. What it says is what torch takes anyway.
    setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
    at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
    c10::cuda::set_device(index_of(index));
    at::Context& context = at::globalContext();
    context.setAllowBF16ReductionCuBLAS(false);
    context.setFloat32MatmulPrecision("highest");  // no TF32
  }

  DeviceMemory memory(int index) override {
    const c10::cuda::CUDAGuard here(index_of(index));
    DeviceMemory memory;
    size_t free = 0, total = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free, &total));
    const auto statistics = allocator::getDeviceStats(index_of(index));
    constexpr auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    memory.allocated_bytes = statistics.allocated_bytes[all].current;
    memory.peak_allocated_bytes = statistics.allocated_bytes[all].peak;
    memory.held_bytes = statistics.reserved_bytes[all].current;
    memory.peak_held_bytes = statistics.reserved_bytes[all].peak;
    memory.free_bytes = static_cast<int64_t>(free);
    memory.total_bytes = static_cast<int64_t>(total);
    return memory;
  }

  void set_memory_limit(int index, int64_t bytes) override {
    const auto total = static_cast<double>(memory(index).total_bytes);
    const double fraction = bytes > 0 ? std::min(1.0, static_cast<double>(bytes) / total) : 1.0;
    allocator::setMemoryFraction(fraction, index_of(index));
  }

  void reset_memory_peaks(int index) override { allocator::resetPeakStats(index_of(index)); }
  void forbid_waiting(bool forbidden) override {
    c10::cuda::warning_state().set_sync_debug_mode(forbidden ? c10::cuda::SyncDebugMode::L_ERROR
                                                             : c10::cuda::SyncDebugMode::L_DISABLED);
  }
  GpuKernels* kernels(int index) override { return is_ampere_or_later(index) ? &cuda_kernels(index) : nullptr; }
  DeviceGroups* groups() override { return nccl_groups(); }
  void release_unused_memory() override { allocator::emptyCache(); }
};

}  // namespace
}  // namespace cotune

extern "C" {
__attribute__((visibility("default"))) const char* cotune_plugin_interface() { return COTUNE_PLUGIN_INTERFACE; }
__attribute__((visibility("default"))) cotune::DevicePlugin* cotune_device_plugin() {
  static cotune::CudaPlugin plugin;
  return &plugin;
}
}
