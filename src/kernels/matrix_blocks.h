/// Inside the matrix kernels: how rows are cut into tiles, and the memory each thread works in.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/matrix_kernels.h"

namespace cotune::kernels {

/// Scratch of one thread. Grows, never shrinks; contents do not survive the next get() of the same slot.
class ThreadScratch {
 public:
  ThreadScratch() = default;
  ThreadScratch(const ThreadScratch&) = delete;
  ThreadScratch& operator=(const ThreadScratch&) = delete;
  ~ThreadScratch();

  enum Slot { left, right, partial, terms, slot_count };
  /// At least `bytes`, aligned to 64.
  char* get(Slot slot, int64_t bytes);

  static ThreadScratch& mine();

 private:
  char* memory_[slot_count] = {};
  int64_t bytes_[slot_count] = {};
};

/// How many tiles `rows` rows are cut into, and where tile i begins: as equal as can be.
inline int64_t tile_count(int64_t rows, int tile_rows) {
  return (rows + tile_rows - 1) / tile_rows;
}
inline int64_t tile_begin(int64_t rows, int64_t tiles, int64_t i) {
  return rows * i / tiles;
}

/// The part `index` of `parts` of `count` things.
inline RowRange share(int64_t count, int64_t index, int64_t parts) {
  return {count * index / parts, count * (index + 1) / parts};
}

/// Rows of a left operand as the kernels can read them: in place, or copied (converted, where the kernels ask for it)
/// with k padded and a stride that spreads the rows over the cache's sets.
class LeftOperand {
 public:
  LeftOperand(const void* x, int64_t stride, int64_t k, const MatrixKernels& kernels);

  bool copies() const { return copies_; }
  /// Bytes that `rows` rows take in scratch; 0 where they are read in place.
  int64_t copy_bytes(int64_t rows) const { return copies_ ? rows * copy_stride_ : 0; }
  /// Bytes between rows as the kernels see them.
  int64_t stride() const { return copies_ ? copy_stride_ : stride_; }
  const char* in_place(int64_t row) const { return x_ + row * stride_; }
  void copy_row(int64_t row, char* target) const;

  /// Whether rows that are copied can be so by columns, for a block of k at a time: those that are not converted.
  bool copies_columns() const { return copies_ && kernels_.convert_left == nullptr; }
  /// Bytes between rows of which `columns` columns are copied.
  int64_t column_stride(int64_t columns) const { return spread(columns * kernels_.left_element_bytes); }
  void copy_columns(int64_t row, int64_t first, int64_t columns, char* target) const;

 private:
  static int64_t spread(int64_t bytes);

  const MatrixKernels& kernels_;
  const char* x_;
  int64_t k_, stride_, row_bytes_, padded_bytes_, copy_stride_;
  bool copies_;
};

}  // namespace cotune::kernels
