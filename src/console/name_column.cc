#include "console/name_column.h"

#include <fmt/format.h>

#include <algorithm>

#include "watch/screen_text.h"

namespace cotune {
namespace {

constexpr size_t usual_name = 16, widest_name = 40, usual_line = 80;

}  // namespace

size_t name_column_width(const std::vector<std::string>& names, size_t line_columns) {
  size_t width = 8;
  for (const std::string& name : names) width = std::max(width, name.size());
  const size_t usual = usual_name + std::max(line_columns, usual_line) - usual_line;
  return std::min(width, distinct_width(names, usual, std::max(usual, widest_name), false));
}

std::string name_column(const std::string& name, size_t width) {
  return fmt::format("{:<{}}", with_both_ends(name, width, false), width);
}

}  // namespace cotune
