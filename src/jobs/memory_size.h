/// Amounts of memory as users write them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace cotune {

/// `8GiB` is bytes; `60%` and `auto` (80%) are shares of what is free.
struct MemorySize {
  int64_t bytes = 0;  ///< > 0: an absolute amount; 0: `share` holds
  double share = 0;   ///< (0, 1]
  int64_t of(int64_t free_bytes) const;  ///< in bytes
  bool operator==(const MemorySize&) const = default;
};

inline constexpr double default_memory_share = 0.8;

/// "auto", a percentage above 0% up to 100%, or a number with KiB, MiB, GiB, TiB (powers of 1024), KB, MB, GB, TB
/// (powers of 1000), at least 1 MiB. Nothing when the text is none of these.
std::optional<MemorySize> parse_memory_size(std::string_view text);

}  // namespace cotune
