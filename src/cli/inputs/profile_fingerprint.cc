#include "cli/inputs/profile_fingerprint.h"

#include <fmt/format.h>
#include <omp.h>
#include <torch/headeronly/version.h>

#include <fstream>

#include "cli/inputs/compute_dtype.h"
#include "cli/manual/build_facts.h"
#include "ops/backend.h"

namespace cotune {
namespace {

/// As /proc/cpuinfo has it; "cpu" where it says nothing.
std::string processor_name() {
  std::ifstream stream("/proc/cpuinfo");
  std::string line;
  while (std::getline(stream, line)) {
    if (!line.starts_with("model name")) continue;
    const size_t colon = line.find(':');
    if (colon != std::string::npos && colon + 2 <= line.size()) return line.substr(colon + 2);
  }
  return "cpu";
}

}  // namespace

ProfileFingerprint fingerprint_here(const ModelConfig& model, at::ScalarType compute, const ComputeDevice& device,
                                    const RanksHere& here) {
  return {.device = device.is_cpu() ? processor_name() : device.name,
          .kernels = device.is_cpu() ? to_string(kernel_isa(compute, at::kCPU)) : "aten on " + device.device.str(),
          .libraries = fmt::format("torch {}, cotune {}", TORCH_VERSION, program_version()),
          .model = model_shape_text(model),
          .dtype = dtype_name(compute),
          .threads = !device.is_cpu() ? 1 : here.threads > 0 ? here.threads : omp_get_max_threads(),
          .ranks = here.ranks};
}

}  // namespace cotune
