#include "schedule/memory/memory_facts.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace cotune {

int64_t MemoryEstimate::total() const {
  return weights + adapters + gradients + optimizer + std::max(activations + chain_kv + workspace + logits, files);
}

std::string MemoryEstimate::overflowing_term(int64_t limit) const {
  const std::array<std::pair<const char*, int64_t>, 8> terms = {{{"weights", weights},
                                                                 {"adapters", adapters},
                                                                 {"gradients", gradients},
                                                                 {"optimizer", optimizer},
                                                                 {"activations", activations},
                                                                 {"chain_kv", chain_kv},
                                                                 {"workspace", workspace},
                                                                 {"logits", logits}}};
  int64_t sum = 0;
  for (const auto& [name, bytes] : terms) {
    sum += bytes;
    if (sum > limit) return name;
  }
  return total() > limit ? "files" : "";
}

int64_t MemoryFacts::with_holes(int64_t bytes) const {
  return static_cast<int64_t>(std::ceil(static_cast<double>(bytes) * fragmentation));
}

}  // namespace cotune
