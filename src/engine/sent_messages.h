#pragma once

#include <cstdint>

namespace cotune {

/// What a rank has sent to other stages, as it travelled: norms that go alone, records and their filling counted (rank_messages.h).
struct SentMessages {
  int64_t count = 0, bytes = 0;
  SentMessages& operator+=(const SentMessages& other) {
    count += other.count;
    bytes += other.bytes;
    return *this;
  }
  bool operator==(const SentMessages&) const = default;
};

}  // namespace cotune
