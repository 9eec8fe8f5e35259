// A stand-in for libcotune_cuda.so; built several times, as the macros say.

#include "device/plugin.h"

namespace {

class FakePlugin final : public cotune::DevicePlugin {
 public:
  int device_count() noexcept override { return FAKE_DEVICES; }
  std::string name(int index) override { return "fake device " + std::to_string(index); }
  bool has_bf16(int) override { return true; }
  void activate(int) override { ++activations_; }
  cotune::DeviceMemory memory(int) override { return {.allocated_bytes = activations_, .total_bytes = limit_}; }
  void set_memory_limit(int, int64_t bytes) override { limit_ = bytes; }
  void reset_memory_peaks(int) override {}
  void forbid_waiting(bool) override {}
  cotune::GpuKernels* kernels(int) override { return nullptr; }
  cotune::DeviceGroups* groups() override { return nullptr; }
  void release_unused_memory() override {}

 private:
  int64_t activations_ = 0, limit_ = 0;
};

}  // namespace

extern "C" {
const char* cotune_plugin_interface() { return FAKE_INTERFACE; }
cotune::DevicePlugin* cotune_device_plugin() {
  static FakePlugin plugin;
  return &plugin;
}
}
