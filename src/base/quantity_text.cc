#include "base/quantity_text.h"

#include <fmt/format.h>

#include <array>
#include <cmath>

namespace cotune {
namespace {

std::string three_digits(double value) {
  const double size = std::abs(value);
  return size < 9.995   ? fmt::format("{:.2f}", value)
         : size < 99.95 ? fmt::format("{:.1f}", value)
                        : fmt::format("{:.0f}", value);
}

}  // namespace

std::string seconds_text(double seconds, bool unicode) {
  const double size = std::abs(seconds);
  if (size == 0) return "0 s";
  if (size < 0.9995e-3) return three_digits(seconds * 1e6) + (unicode ? " µs" : " us");
  if (size < 0.9995) return three_digits(seconds * 1e3) + " ms";
  return three_digits(seconds) + " s";
}

std::string duration_text(double seconds) {
  if (!std::isfinite(seconds)) return "?";
  const auto whole = static_cast<int64_t>(std::lround(std::max(0.0, seconds)));
  if (whole < 60) return fmt::format("{}s", whole);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

std::string bytes_text(int64_t bytes) {
  if (bytes < 1024) return fmt::format("{} B", bytes);
  constexpr std::array<const char*, 4> units = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  for (; value >= 999.5 && unit + 1 < units.size(); ++unit) value /= 1024;
  return three_digits(value) + " " + units[unit];
}

}  // namespace cotune
