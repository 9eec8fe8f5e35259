/// Numbers in JSON, which knows none that is not finite: null stands for NaN.
#pragma once

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

namespace cotune {

template <typename Json = nlohmann::json>
Json number_or_null(double value) {
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

template <typename Json>
double number_from(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.template get<double>();
}

}  // namespace cotune
