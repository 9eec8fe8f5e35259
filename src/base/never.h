#pragma once

#include <limits>

namespace cotune {

inline constexpr double never = std::numeric_limits<double>::infinity();  ///< seconds of what cannot be, or does not fit

}  // namespace cotune
