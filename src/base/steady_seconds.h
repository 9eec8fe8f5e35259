#pragma once

#include <chrono>

namespace cotune {

/// Of std::chrono::steady_clock, since some moment before the program.
inline double steady_seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace cotune
