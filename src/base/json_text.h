/// JSON of values that it has no place for: bytes that are no UTF-8, as names of files may have, and numbers that are not finite.
#pragma once

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

namespace cotune {

/// Its text, in one line, or with indents of so many blanks above 0. Bytes that are no UTF-8 become U+FFFD.
template <typename Json>
std::string text_of_json(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

/// null stands for NaN, and for infinity.
template <typename Json = nlohmann::json>
Json number_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

/// NaN where it is null.
template <typename Json>
double number_from(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.template get<double>();
}

}  // namespace cotune
