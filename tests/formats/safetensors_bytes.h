/// Small safetensors files whose tensors are all in memory.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "formats/safetensors_writer.h"

namespace cotune {

struct NamedTensor {
  std::string name;
  TensorView tensor;
};

/// A file's bytes, whatever the order of `tensors`.
inline std::string safetensors_bytes(std::span<const NamedTensor> tensors, const std::map<std::string, std::string>& metadata = {}) {
  std::vector<TensorPlan> plans;
  std::map<std::string, std::span<const std::byte>> bytes;
  for (const auto& [name, view] : tensors) {
    plans.push_back({name, view.dtype, view.shape});
    bytes[name] = view.bytes;
  }
  plans = in_file_order(std::move(plans));
  std::string file = safetensors_header(plans, metadata);
  for (const TensorPlan& plan : plans) {
    const std::span<const std::byte> tensor = bytes.at(plan.name);
    file.append(reinterpret_cast<const char*>(tensor.data()), tensor.size());
  }
  return file;
}

}  // namespace cotune
