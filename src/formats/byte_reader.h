/// Reads little-endian values from untrusted bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/error.h"

namespace cotune {

/// A cursor that never passes the end: every read throws UserError naming the file when too few bytes are
/// left.
class ByteReader {
 public:
  ByteReader(std::span<const std::byte> bytes, const std::string& file_name)
      : bytes_(bytes), file_name_(file_name) {}

  size_t position() const { return position_; }
  size_t remaining() const { return bytes_.size() - position_; }

  /// `what` is for the message. T is an integer or floating type of the file's width.
  template <typename T>
  T read(std::string_view what) {
    static_assert(std::is_arithmetic_v<T>);
    T value;
    std::memcpy(&value, take(sizeof(T), what).data(), sizeof(T));
    return value;
  }

  std::span<const std::byte> take(uint64_t count, std::string_view what) {
    if (count > remaining()) {
      throw_user_error("{}: {}: needs {} bytes at offset {}, the file has {} left: is it truncated?",
                       file_name_, what, count, position_, remaining());
    }
    const auto taken = bytes_.subspan(position_, static_cast<size_t>(count));
    position_ += static_cast<size_t>(count);
    return taken;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_name_;
  size_t position_ = 0;
};

}  // namespace cotune
