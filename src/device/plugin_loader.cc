#include "device/plugin_loader.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstring>

namespace cotune {
namespace {

namespace fs = std::filesystem;

std::string loader_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown error" : text;
}

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

/// "" where the driver names a device. The driver's functions: cuda.h.
std::string driver_problem(const std::string& name) {
  void* driver = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (driver == nullptr) return fmt::format("no NVIDIA driver is installed ({})", loader_error());
  auto* initialise = symbol<int(unsigned)>(driver, "cuInit");
  auto* count_devices = symbol<int(int*)>(driver, "cuDeviceGetCount");
  if (initialise == nullptr || count_devices == nullptr) return fmt::format("{} is no NVIDIA driver", name);
  int count = 0;
  const int error = initialise(0);
  constexpr int no_device = 100;
  if (error != 0 && error != no_device) return fmt::format("the NVIDIA driver does not start (CUDA error {})", error);
  if (error == no_device || count_devices(&count) != 0 || count == 0) return "the NVIDIA driver finds no device";
  return "";
}

fs::path beside_program() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path("libcotune_cuda.so") : program.parent_path() / "libcotune_cuda.so";
}

}  // namespace

OpenedPlugin open_cuda_plugin(const PluginSearch& search) {
  OpenedPlugin opened;
  opened.problem = driver_problem(search.driver);
  opened.has_device = opened.problem.empty();
  if (!opened.has_device) return opened;
  const fs::path path = search.plugin.empty() ? beside_program() : search.plugin;
  std::error_code error;
  if (!fs::exists(path, error)) {
    opened.problem = fmt::format("this build has no CUDA plugin ({} is missing): run scripts/install-dependencies "
                                 "--cuda in a clone, then scripts/build, and install from there again (docs/installing.md)", path.string());
    return opened;
  }
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    opened.problem = fmt::format("the CUDA plugin does not load ({}): run scripts/install-dependencies --cuda",
                                 loader_error());
    return opened;
  }
  auto* interface = symbol<const char*()>(library, plugin_interface_symbol);
  auto* make = symbol<DevicePlugin*()>(library, plugin_symbol);
  if (interface == nullptr || make == nullptr || std::strcmp(interface(), COTUNE_PLUGIN_INTERFACE) != 0) {
    opened.problem = fmt::format("{} was built for another cotune ({}; needed: {}): build again", path.string(),
                                 interface == nullptr ? "no interface" : interface(), COTUNE_PLUGIN_INTERFACE);
    return opened;
  }
  DevicePlugin* plugin = make();
  if (plugin->device_count() == 0) {
    opened.problem = "the NVIDIA driver names a device that CUDA 13 cannot use (it needs driver 580 or later)";
    return opened;
  }
  opened.plugin = plugin;
  return opened;
}

}  // namespace cotune
