#include "cli/manual/build_facts.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <filesystem>

#include "kernels/isa.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// Beside the program; "" where this build has none.
fs::path plugin_file(const char* name) {
  std::error_code error;
  const fs::path file = fs::read_symlink("/proc/self/exe", error).parent_path() / name;
  return fs::exists(file, error) ? file : fs::path();
}

std::string plugin_fact(const char* what, const fs::path& file) {
  return fmt::format("{}: {}", what, file.empty() ? "not in this build" : file.filename().string());
}

/// Of the plugin that reads Parquet, whose Apache Arrow a pip installation has only where it was asked for.
std::string parquet_fact() {
  const fs::path file = plugin_file("libcotune_parquet.so");
  const std::string fact = plugin_fact("Parquet files", file);
  if (file.empty()) return fact;
  void* library = dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) return fact + ", which does not load: Apache Arrow is missing (`pip install 'cotune[parquet]'`)";
  dlclose(library);
  return fact;
}

}  // namespace

std::string program_version() { return COTUNE_VERSION; }

std::string source_date() { return COTUNE_DATE; }

std::string build_facts() {
  return fmt::format("cotune {}\nlibtorch {}\nkernels on this processor: bfloat16 {}, float32 {}\n{}\n{}", program_version(), TORCH_VERSION,
                     to_string(kernels::bf16_isa()), to_string(kernels::f32_isa()), plugin_fact("NVIDIA GPUs", plugin_file("libcotune_cuda.so")),
                     parquet_fact());
}

}  // namespace cotune
