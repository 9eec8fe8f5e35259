/// Builds GGUF files, right or wrong on purpose, for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace cotune {

class GgufBuilder {
 public:
  explicit GgufBuilder(uint32_t version = 3) : version_(version) {}

  template <typename T>
  static std::string raw(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  static std::string text(std::string_view value) { return raw<uint64_t>(value.size()) + std::string(value); }

  /// A pair whose value is given as its type number and bytes.
  GgufBuilder& pair(std::string_view key, uint32_t type, const std::string& value) {
    pairs_ += text(key) + raw(type) + value;
    ++pair_count;
    return *this;
  }
  GgufBuilder& u32(std::string_view key, uint32_t value) { return pair(key, 4, raw(value)); }
  GgufBuilder& f32(std::string_view key, float value) { return pair(key, 6, raw(value)); }
  GgufBuilder& string(std::string_view key, std::string_view value) { return pair(key, 8, text(value)); }
  GgufBuilder& array(std::string_view key, uint32_t type, uint64_t count, const std::string& values) {
    return pair(key, 9, raw(type) + raw(count) + values);
  }

  /// A tensor with its extents innermost first, as the file has them.
  GgufBuilder& tensor(std::string_view name, std::initializer_list<uint64_t> extents, uint32_t type,
                      uint64_t offset) {
    tensors_ += text(name) + raw(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) tensors_ += raw(extent);
    tensors_ += raw(type) + raw(offset);
    ++tensor_count;
    return *this;
  }

  /// `data` begins at the next multiple of `alignment`.
  std::string bytes(const std::string& data = "", size_t alignment = 32) const {
    std::string file = "GGUF" + raw(version_) + raw(tensor_count) + raw(pair_count) + pairs_ + tensors_;
    file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
    return file + data;
  }

  uint64_t tensor_count = 0, pair_count = 0;  ///< may be falsified

 private:
  uint32_t version_;
  std::string pairs_, tensors_;
};

}  // namespace cotune
