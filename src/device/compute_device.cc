#include "device/compute_device.h"

#include <fmt/format.h>

#include "base/error.h"

namespace cotune {

ComputeDevice choose_device(const std::string& wish, const std::string& place, const PluginSearch& search) {
  ComputeDevice chosen;
  if (wish == "cpu") return chosen;
  const OpenedPlugin opened = open_cuda_plugin(search);
  if (opened.plugin == nullptr) {
    if (wish == "cuda") throw_user_error("{}: cuda: {}; `cpu` and `auto` are available", place, opened.problem);
    if (opened.has_device) chosen.notice = fmt::format("the GPU is not used: {}", opened.problem);
    return chosen;
  }
  chosen.device = at::Device(at::kCUDA, 0);
  chosen.plugin = opened.plugin;
  chosen.name = opened.plugin->name(0);
  opened.plugin->activate(0);
  set_active_gpu_kernels(opened.plugin->kernels(0));
  return chosen;
}

}  // namespace cotune
