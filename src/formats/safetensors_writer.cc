#include "formats/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace cotune {

size_t TensorPlan::byte_count() const {
  size_t bytes = element_bytes(dtype);
  for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
  return bytes;
}

std::vector<TensorPlan> in_file_order(std::vector<TensorPlan> tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorPlan& a, const TensorPlan& b) {
    const size_t a_bytes = element_bytes(a.dtype), b_bytes = element_bytes(b.dtype);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  return tensors;
}

std::string safetensors_header(std::span<const TensorPlan> tensors, const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  size_t position = 0;
  for (const TensorPlan& tensor : tensors) {
    COTUNE_CHECK(!header.contains(tensor.name), "{} occurs twice", tensor.name);
    const size_t end = position + tensor.byte_count();
    header[tensor.name] = {{"dtype", safetensors_name(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {position, end}}};
    position = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(text.size() >> (8 * i) & 0xff));
  return bytes + text;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, std::vector<TensorPlan> tensors,
                                     const std::map<std::string, std::string>& metadata)
    : tensors_(in_file_order(std::move(tensors))), file_(path) {
  for (const TensorPlan& tensor : tensors_) left_bytes_ += tensor.byte_count();
  file_.append(safetensors_header(tensors_, metadata));
}

void SafetensorsWriter::append(std::span<const std::byte> bytes) {
  COTUNE_CHECK(bytes.size() <= left_bytes_, "{} bytes more than the tensors have", bytes.size() - left_bytes_);
  left_bytes_ -= bytes.size();
  file_.append({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

void SafetensorsWriter::commit() {
  COTUNE_CHECK(left_bytes_ == 0, "{} bytes are missing", left_bytes_);
  file_.commit();
}

}  // namespace cotune
