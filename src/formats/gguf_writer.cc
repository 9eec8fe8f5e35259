#include "formats/gguf_writer.h"

#include <cstring>

#include "base/error.h"
#include "formats/dequantize.h"

namespace cotune {
namespace {

constexpr size_t alignment = 32;
constexpr uint32_t version = 3, uint32_number = 4, float_number = 6, text_number = 8;

template <typename T>
std::string raw(T value) {
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

std::string text(const std::string& value) { return raw<uint64_t>(value.size()) + value; }

std::string typed(const GgufPair& pair) {
  if (const auto* value = std::get_if<std::string>(&pair.second)) return raw(text_number) + text(*value);
  if (const auto* value = std::get_if<uint32_t>(&pair.second)) return raw(uint32_number) + raw(*value);
  return raw(float_number) + raw(std::get<float>(pair.second));
}

void pad(std::string& bytes) { bytes.resize((bytes.size() + alignment - 1) / alignment * alignment, '\0'); }

}  // namespace

std::string gguf_bytes(std::span<const GgufPair> pairs, std::span<const GgufTensor> tensors) {
  std::string file = "GGUF" + raw(version) + raw<uint64_t>(tensors.size()) + raw<uint64_t>(pairs.size());
  for (const GgufPair& pair : pairs) file += text(pair.first) + typed(pair);
  std::string data;
  for (const GgufTensor& tensor : tensors) {
    size_t bytes = static_cast<size_t>(gguf_block(tensor.type).bytes);
    for (const int64_t extent : tensor.shape) bytes *= static_cast<size_t>(extent);
    COTUNE_CHECK((tensor.type == GgufType::F32 || tensor.type == GgufType::F16) && bytes == tensor.bytes.size(), "{}", tensor.name);
    file += text(tensor.name) + raw(static_cast<uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent) file += raw(static_cast<uint64_t>(*extent));
    file += raw(static_cast<uint32_t>(tensor.type)) + raw<uint64_t>(data.size());
    data.append(reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size());
    pad(data);
  }
  pad(file);
  return file + data;
}

}  // namespace cotune
