#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"

namespace cotune::testing {

/// Of the tiny model's vocabulary.
inline std::vector<int32_t> random_tokens(uint64_t key, size_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(uniform_below(key, i, 128)));
  return tokens;
}

}  // namespace cotune::testing
