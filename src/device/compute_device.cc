#include "device/compute_device.h"

#include <fmt/format.h>

#include "base/error.h"

namespace cotune {

ComputeDevice choose_device(const std::string& wish, const std::string& place, const PluginSearch& search,
                            int local_rank) {
  ComputeDevice chosen;
  if (wish == "cpu") return chosen;
  if (wish.starts_with("emulated:")) {
    chosen.device = at::kMeta;
    chosen.name = "emulated";
    return chosen;
  }
  const OpenedPlugin opened = open_cuda_plugin(search);
  if (opened.plugin == nullptr) {
    if (wish == "cuda") throw_user_error("{}: cuda: {}; `cpu` and `auto` are available", place, opened.problem);
    if (opened.has_device) chosen.notice = fmt::format("the GPU is not used: {}", opened.problem);
    return chosen;
  }
  const int index = local_rank % opened.plugin->device_count();
  chosen.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
  chosen.plugin = opened.plugin;
  chosen.name = opened.plugin->name(index);
  opened.plugin->activate(index);
  set_active_gpu_kernels(opened.plugin->kernels(index));
  return chosen;
}

}  // namespace cotune
