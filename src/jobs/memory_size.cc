#include "jobs/memory_size.h"

#include <charconv>
#include <cmath>
#include <utility>

namespace cotune {

int64_t MemorySize::of(int64_t free_bytes) const {
  return bytes > 0 ? bytes : static_cast<int64_t>(std::floor(share * static_cast<double>(free_bytes)));
}

std::optional<MemorySize> parse_memory_size(std::string_view text) {
  if (text == "auto") return MemorySize{.share = default_memory_share};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc{} || !std::isfinite(number)) return std::nullopt;
  std::string_view unit(end, text.data() + text.size() - end);
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit == "%") {
    if (!(number > 0 && number <= 100)) return std::nullopt;
    return MemorySize{.share = number / 100};
  }
  constexpr double kib = 1024, kb = 1000;
  constexpr std::pair<std::string_view, double> units[] = {
      {"KiB", kib}, {"MiB", kib * kib}, {"GiB", kib * kib * kib}, {"TiB", kib * kib * kib * kib},
      {"KB", kb},   {"MB", kb * kb},    {"GB", kb * kb * kb},     {"TB", kb * kb * kb * kb}};
  for (const auto& [name, factor] : units) {
    if (unit != name) continue;
    const double bytes = number * factor;
    if (!(bytes >= kib * kib && bytes <= 0x1p62)) return std::nullopt;
    return MemorySize{.bytes = static_cast<int64_t>(bytes)};
  }
  return std::nullopt;
}

}  // namespace cotune
