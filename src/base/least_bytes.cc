#include "base/least_bytes.h"

#include "base/quantity_text.h"

namespace cotune {

std::optional<int64_t> least_bytes(int64_t too_little, const std::function<bool(int64_t bytes)>& fits) {
  const auto from = static_cast<double>(too_little);
  int64_t enough = too_little;
  for (double more = 1.0 / 16;; more *= 4) {
    if (more > 1024) return std::nullopt;
    enough = bytes_rounded_up(static_cast<int64_t>(from + more * from) + 1);
    if (fits(enough)) break;
    too_little = enough;
  }
  while (enough - too_little > shown_step(enough)) {
    const int64_t middle = bytes_rounded_up(too_little + (enough - too_little) / 2);
    const int64_t bytes = middle < enough ? middle : bytes_rounded_up(enough - shown_step(enough));
    if (bytes >= enough) break;
    (fits(bytes) ? enough : too_little) = bytes;
  }
  return enough;
}

}  // namespace cotune
