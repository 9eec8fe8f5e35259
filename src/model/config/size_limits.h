/// The largest sizes accepted in a configuration: far above any model, and small enough that no product of
/// them overflows and that a damaged file cannot ask for millions of layers.
#pragma once

#include <cstdint>

namespace cotune {

inline constexpr int64_t kMaximumLayers = 4096;
inline constexpr int64_t kMaximumWidth = 1 << 20;  ///< hidden and intermediate
inline constexpr int64_t kMaximumHeads = 1 << 14;
inline constexpr int64_t kMaximumHeadDim = 1 << 12;
inline constexpr int64_t kMaximumVocabulary = 1 << 24;
inline constexpr int64_t kMaximumContext = INT32_MAX;  ///< tokens

}  // namespace cotune
