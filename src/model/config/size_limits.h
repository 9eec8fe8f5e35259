/// The largest sizes accepted in a configuration: far above any model, and small enough that no product of
/// them overflows and that a damaged file cannot ask for millions of layers.
#pragma once

#include <cstdint>

namespace cotune {

inline constexpr int64_t maximum_layers = 4096;
inline constexpr int64_t maximum_width = 1 << 20;  ///< hidden and intermediate
inline constexpr int64_t maximum_heads = 1 << 14;
inline constexpr int64_t maximum_head_dim = 1 << 12;
inline constexpr int64_t maximum_vocabulary = 1 << 24;
inline constexpr int64_t maximum_context = INT32_MAX;  ///< tokens

}  // namespace cotune
