/// How many calls the operators have made: what BatchLoRA promises not to grow with the jobs (mLoRA
/// §3.3.1–2).
#pragma once

#include <cstdint>

namespace cotune {

/// Calls of this thread's operators since it began; counted where a kernel of ours, or a sequence of ATen's
/// batched operators whose length no number of jobs changes, is really run. A loop over jobs counts every
/// turn.
struct CallCounts {
  int64_t frozen = 0;   ///< products with frozen weights
  int64_t adapter = 0;  ///< all that adapters add: shrinks, expansions outside a frozen product (and inside
                        ///< one of ATen's), gradients, dropout, activations, sparse deltas
  bool operator==(const CallCounts&) const = default;
};

inline CallCounts operator-(const CallCounts& a, const CallCounts& b) {
  return {a.frozen - b.frozen, a.adapter - b.adapter};
}

CallCounts call_counts();
void count_frozen_call();
void count_adapter_call();

}  // namespace cotune
