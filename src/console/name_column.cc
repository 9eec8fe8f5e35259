#include "console/name_column.h"

#include <fmt/format.h>

#include <algorithm>

#include "watch/screen_text.h"

namespace cotune {
namespace {

constexpr size_t usual_name = 16, widest_name = 40;

}  // namespace

size_t name_column_width(const std::vector<std::string>& names) {
  size_t width = 8;
  for (const std::string& name : names) width = std::max(width, name.size());
  return std::min(width, distinct_width(names, usual_name, widest_name, false));
}

std::string name_column(const std::string& name, size_t width) {
  return fmt::format("{:<{}}", with_both_ends(name, width, false), width);
}

}  // namespace cotune
