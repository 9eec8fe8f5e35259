#include "jobs/adapter_methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "jobs/enum_names.h"

namespace cotune {

bool selects_entries(AdapterMethod method) {
  switch (method) {
    case AdapterMethod::lora:
    case AdapterMethod::bottleneck:
      return false;
    case AdapterMethod::diff_pruning:
      return true;
  }
  return false;
}

int64_t kept_entries(double density, int64_t weight_values) {
  const auto kept = static_cast<int64_t>(std::ceil(density * static_cast<double>(weight_values)));
  return std::clamp<int64_t>(kept, 1, weight_values);
}

std::string different_meaning(const AdapterSpec& adapter, const AdapterSpec& job) {
  switch (job.method) {
    case AdapterMethod::lora:
      if (adapter.use_rslora == job.use_rslora) return {};
      return fmt::format("its use_rslora is {}, not {}", adapter.use_rslora, job.use_rslora);
    case AdapterMethod::bottleneck:
      if (adapter.activation == job.activation) return {};
      return fmt::format("its activation is {}, not {}", name_of(adapter.activation),
                         name_of(job.activation));
    case AdapterMethod::diff_pruning:
      return {};
  }
  return {};
}

}  // namespace cotune
