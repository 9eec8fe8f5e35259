/// XXH3-128 of bytes that come piece by piece.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

struct XXH3_state_s;

namespace cotune {

class RunningChecksum {
 public:
  RunningChecksum();
  void add(std::span<const std::byte> bytes);
  /// Of all that was added so far: what checksum() (base/file.h) says of the same bytes in one piece.
  std::string text() const;
  /// The same as two numbers, the upper half first.
  std::array<uint64_t, 2> value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace cotune
