#include "watch/footer_lines.h"

#include "watch/screen_text.h"

namespace cotune {
namespace {

constexpr std::string_view between = "  ";

std::vector<std::string> lines_of(std::span<const std::string> parts, size_t columns) {
  std::vector<std::string> lines;
  for (const std::string& part : parts) {
    if (!lines.empty() && columns_of(lines.back()) + between.size() + columns_of(part) <= columns) {
      lines.back().append(between).append(part);
      continue;
    }
    for (std::string& line : wrapped(part, columns)) lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace

std::vector<std::string> footer_lines(std::span<const std::string> parts, size_t columns, size_t most, bool unicode) {
  for (; parts.size() > 1; parts = parts.subspan(1)) {
    std::vector<std::string> lines = lines_of(parts, columns);
    if (lines.size() <= most) return lines;
  }
  return parts.empty() ? std::vector<std::string>() : wrapped(parts.front(), columns, most, unicode);
}

}  // namespace cotune
