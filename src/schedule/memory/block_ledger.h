/// Counts blocks of memory that live as tensors do: as long as somebody holds them.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

namespace cotune {

enum class BlockKind { activations, chain_kv, workspace, logits };

/// Must outlive its blocks.
class BlockLedger {
 public:
  /// Its bytes; given back with the last holder.
  using Block = std::shared_ptr<const int64_t>;

  /// Nothing for no bytes.
  Block allocate(BlockKind kind, int64_t bytes);

  /// The most bytes at once: of one kind, of all together.
  int64_t peak(BlockKind kind) const { return peak_[static_cast<size_t>(kind)]; }
  int64_t peak_together() const { return most_together_; }

 private:
  static constexpr size_t kind_count = 4;
  std::array<int64_t, kind_count> live_{}, peak_{};
  int64_t together_ = 0, most_together_ = 0;
};

}  // namespace cotune
