#pragma once

#include <string>

namespace cotune {

/// A field of a CSV line: as it is, or in quotes where it holds a comma, a quote or a line's end (RFC 4180).
std::string csv_field(const std::string& field);

}  // namespace cotune
