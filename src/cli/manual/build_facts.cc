#include "cli/manual/build_facts.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <filesystem>

#include "kernels/isa.h"

namespace cotune {
namespace {

std::string plugin_fact(const char* what, const char* file) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const bool there = !error && std::filesystem::exists(program.parent_path() / file, error);
  return fmt::format("{}: {}", what, there ? file : "not in this build");
}

/// Of the plugin that reads Parquet, whose Apache Arrow a pip installation has only where it was asked for.
std::string parquet_fact() {
  std::string fact = plugin_fact("Parquet files", "libcotune_parquet.so");
  std::error_code error;
  const std::filesystem::path plugin = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "libcotune_parquet.so";
  if (!std::filesystem::exists(plugin, error)) return fact;
  void* library = dlopen(plugin.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return fact + ", which does not load: Apache Arrow is missing (`pip install 'cotune[parquet]'`)";
  dlclose(library);
  return fact;
}

}  // namespace

std::string program_version() { return COTUNE_VERSION; }

std::string source_date() { return COTUNE_DATE; }

std::string build_facts() {
  return fmt::format("cotune {}\nlibtorch {}\nkernels on this processor: bfloat16 {}, float32 {}\n{}\n{}", program_version(), TORCH_VERSION,
                     to_string(kernels::bf16_isa()), to_string(kernels::f32_isa()), plugin_fact("NVIDIA GPUs", "libcotune_cuda.so"),
                     parquet_fact());
}

}  // namespace cotune
