/// safetensors files written tensor by tensor: no more than one need be in memory.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/atomic_file.h"
#include "formats/data_type.h"

namespace cotune {

/// A tensor that a file will hold.
struct TensorPlan {
  std::string name;
  DataType dtype = DataType::f32;
  std::vector<int64_t> shape;
  /// product(shape) · element_bytes(dtype).
  size_t byte_count() const;
};

/// In the order of their bytes in a file: larger elements first (which keeps every tensor aligned), then by name.
std::vector<TensorPlan> in_file_order(std::vector<TensorPlan> tensors);

/// The file's bytes before the tensors, which follow in the order given. Throws InternalError when a name occurs twice.
std::string safetensors_header(std::span<const TensorPlan> tensors, const std::map<std::string, std::string>& metadata);

class SafetensorsWriter {
 public:
  /// Throws SystemError as AtomicFile does.
  SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorPlan> tensors,
                    const std::map<std::string, std::string>& metadata = {});

  /// The order in which the tensors' bytes are to be appended, in as many pieces as one likes.
  const std::vector<TensorPlan>& tensors() const { return tensors_; }
  void append(std::span<const std::byte> bytes);
  /// The file is there. Throws InternalError where bytes are missing or too many.
  void commit();

 private:
  std::vector<TensorPlan> tensors_;
  AtomicFile file_;
  size_t left_bytes_ = 0;
};

}  // namespace cotune
