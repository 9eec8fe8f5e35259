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

/// What a number of bytes from 1024 on is told in.
struct ByteUnit {
  const char* name = "";
  double bytes = 0;
  double steps = 0;  ///< that are told apart in one

  double step() const { return bytes / steps; }
};

ByteUnit unit_of(int64_t bytes) {
  constexpr std::array<const char*, 4> units = {"KiB", "MiB", "GiB", "TiB"};
  double of_unit = 1024;
  size_t unit = 0;
  for (; static_cast<double>(bytes) / of_unit >= 999.5 && unit + 1 < units.size(); ++unit) of_unit *= 1024;
  const double value = static_cast<double>(bytes) / of_unit;
  return {units[unit], of_unit, value < 9.995 ? 100.0 : value < 99.95 ? 10.0 : 1.0};
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
  const ByteUnit unit = unit_of(bytes);
  return three_digits(static_cast<double>(bytes) / unit.bytes) + " " + unit.name;
}

int64_t shown_step(int64_t bytes) { return bytes < 1024 ? 1 : static_cast<int64_t>(unit_of(bytes).step()); }

int64_t bytes_rounded_up(int64_t bytes) {
  if (bytes < 1024) return bytes;
  const double step = unit_of(bytes).step();
  const double steps = std::ceil(static_cast<double>(bytes - 1) / step);  // of what was rounded up to a whole byte as many as before
  const auto up = static_cast<int64_t>(std::ceil(steps * step));
  return up >= bytes ? up : static_cast<int64_t>(std::ceil((steps + 1) * step));
}

}  // namespace cotune
