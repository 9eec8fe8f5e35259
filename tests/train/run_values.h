/// Adapters that runs have left, compared by their values.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "train/small_run.h"

namespace cotune::testing {

/// The values of a finished job's adapter under f64, by name.
inline std::map<std::string, at::Tensor> values_of(const SmallRun& run, const std::string& job) {
  const SafetensorsFile file(run.folder / "jobs" / job / "adapter" / "adapter_model.safetensors");
  std::map<std::string, at::Tensor> values;
  for (const auto& [name, view] : file.tensors()) {
    if (view.dtype != DataType::f64) continue;  // kept entries
    values[name] = at::empty({static_cast<int64_t>(view.bytes.size() / sizeof(double))}, at::kDouble);
    std::memcpy(values[name].mutable_data_ptr(), view.bytes.data(), view.bytes.size());
  }
  return values;
}

/// To 1e-10 of each tensor's largest value.
inline void expect_equal_adapters(const SmallRun& a, const SmallRun& b, const std::vector<JobSpec>& specs) {
  for (const JobSpec& spec : specs) {
    const auto left = values_of(a, spec.name), right = values_of(b, spec.name);
    ASSERT_EQ(left.size(), right.size());
    ASSERT_FALSE(left.empty());
    for (const auto& [name, value] : left) {
      const at::Tensor& other = right.at(name);
      EXPECT_LE((value - other).abs().max().item<double>(), 1e-10 * value.abs().max().item<double>()) << spec.name << " " << name;
    }
  }
}

}  // namespace cotune::testing
