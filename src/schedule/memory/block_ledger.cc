#include "schedule/memory/block_ledger.h"

#include <algorithm>

namespace cotune {

auto BlockLedger::allocate(BlockKind kind, int64_t bytes) -> Block {
  if (bytes <= 0) return nullptr;
  const auto k = static_cast<size_t>(kind);
  live_[k] += bytes;
  peak_[k] = std::max(peak_[k], live_[k]);
  together_ += bytes;
  most_together_ = std::max(most_together_, together_);
  return {new int64_t(bytes), [this, k](const int64_t* block) {
            live_[k] -= *block;
            together_ -= *block;
            delete block;
          }};
}

}  // namespace cotune
