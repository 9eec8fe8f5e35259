#include "formats/gguf_writer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "formats/gguf_types.h"

namespace cotune {
namespace {

constexpr uint32_t version = 3, uint32_number = 4, float_number = 6, text_number = 8;

template <typename T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string text(const std::string& value) { return raw<uint64_t>(value.size()) + value; }

size_t padding(size_t bytes, uint64_t alignment) { return (alignment - bytes % alignment) % alignment; }

/// All before the tensors, aligned.
std::string header(std::span<const std::string> pairs, std::span<const GgufTensorPlan> tensors, uint64_t alignment) {
  std::string bytes = "GGUF" + raw(version) + raw<uint64_t>(tensors.size()) + raw<uint64_t>(pairs.size());
  for (const std::string& pair : pairs) bytes += pair;
  size_t offset = 0;
  for (const GgufTensorPlan& tensor : tensors) {
    bytes += text(tensor.name) + raw(static_cast<uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent) bytes += raw(static_cast<uint64_t>(*extent));
    bytes += raw(static_cast<uint32_t>(tensor.type)) + raw<uint64_t>(offset);
    offset += tensor.byte_count() + padding(tensor.byte_count(), alignment);
  }
  return bytes + std::string(padding(bytes.size(), alignment), '\0');
}

}  // namespace

std::string gguf_pair_bytes(const GgufPair& pair) {
  const std::string key = text(pair.first);
  if (const auto* value = std::get_if<std::string>(&pair.second)) return key + raw(text_number) + text(*value);
  if (const auto* value = std::get_if<uint32_t>(&pair.second)) return key + raw(uint32_number) + raw(*value);
  return key + raw(float_number) + raw(std::get<float>(pair.second));
}

uint32_t gguf_file_type(GgufType type) {
  switch (type) {
    case GgufType::F32:
      return 0;
    case GgufType::F16:
      return 1;
    case GgufType::BF16:
      return 32;
    default:
      COTUNE_CHECK(false, "{} is not written", gguf_type_name(type));
  }
}

size_t GgufTensorPlan::byte_count() const {
  const std::optional<GgufTypeLayout> layout = gguf_type_layout(static_cast<uint32_t>(type));
  COTUNE_CHECK(layout, "{}", name);
  int64_t values = 1;
  for (const int64_t extent : shape) values *= extent;
  COTUNE_CHECK(values % layout->block_values == 0, "{}", name);
  return static_cast<size_t>(values / layout->block_values * layout->block_bytes);
}

GgufWriter::GgufWriter(const std::filesystem::path& path, std::span<const std::string> pairs, std::vector<GgufTensorPlan> tensors,
                       uint64_t alignment)
    : tensors_(std::move(tensors)), alignment_(alignment), file_(path) {
  file_.append(header(pairs, tensors_, alignment_));
  if (!tensors_.empty()) left_bytes_ = tensors_.front().byte_count();
}

void GgufWriter::append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    COTUNE_CHECK(tensor_ < tensors_.size(), "more bytes than the tensors have");
    const size_t taken = std::min(bytes.size(), left_bytes_);
    file_.append({reinterpret_cast<const char*>(bytes.data()), taken});
    bytes = bytes.subspan(taken);
    left_bytes_ -= taken;
    if (left_bytes_ > 0) continue;
    file_.append(std::string(padding(tensors_[tensor_].byte_count(), alignment_), '\0'));
    if (++tensor_ < tensors_.size()) left_bytes_ = tensors_[tensor_].byte_count();
  }
}

void GgufWriter::commit() {
  COTUNE_CHECK(tensor_ == tensors_.size(), "{} has {} bytes less than its shape", tensors_[tensor_].name, left_bytes_);
  file_.commit();
}

}  // namespace cotune
