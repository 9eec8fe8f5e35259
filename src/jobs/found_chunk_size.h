#pragma once

#include <cstdint>

namespace cotune {

/// RunSpec::chunk_size of `chunk_size: auto`: found from the lengths of all jobs once they are known (schedule/chunk_size.h).
inline constexpr int64_t chunk_size_as_found = 0;

}  // namespace cotune
