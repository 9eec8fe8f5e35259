/// Times of trace events: microseconds that are whole nanoseconds, in which Perfetto counts. Of slices that follow one another it drops the
/// second where rounding begin and length apart has them overlap by one.
#pragma once

#include <cmath>

namespace cotune {

inline double trace_time(double seconds) { return std::round(1e9 * seconds) / 1e3; }

/// Of what takes [start_s, end_s): from one time of an event to the other.
inline double trace_duration(double start_s, double end_s) { return (std::round(1e9 * end_s) - std::round(1e9 * start_s)) / 1e3; }

}  // namespace cotune
