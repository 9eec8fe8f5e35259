#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cotune {

/// A job's name in a column of at most 16 characters, and as many more as lines are wider than 80 columns, or as many as keep the names
/// apart, up to 40: cut where it is longer.
size_t name_column_width(const std::vector<std::string>& names, size_t line_columns = 80);
std::string name_column(const std::string& name, size_t width);

}  // namespace cotune
