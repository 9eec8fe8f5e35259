#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace cotune {

/// A job's name in a column of at most 16 characters, or as many as keep the names apart, up to 40: cut where it is longer.
size_t name_column_width(const std::vector<std::string>& names);
std::string name_column(const std::string& name, size_t width);

}  // namespace cotune
