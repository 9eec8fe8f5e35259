/// Operands of the attention products, packed in 32-bit words: an f32, or where elements_per_word is 2 two bf16 that are neighbours along the
/// summed dimension. A left operand is [rows][words], a right operand [words][columns]; products sum over words.
/// Included by the attention kernels only, inside their own stretch of source for vectors.
#pragma once

#include <utility>

#include "kernels/vectors.h"

namespace cotune::kernels {
namespace {

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// The scratch of a task, given out operand by operand.
class Workspace {
 public:
  explicit Workspace(uint32_t* scratch) : next_(scratch) {}
  /// Uninitialised; aligned to 64 bytes, as `words` are multiples of 16.
  uint32_t* take(int64_t words) { return std::exchange(next_, next_ + words); }
  float* take_floats(int64_t count) { return reinterpret_cast<float*>(take(count)); }

 private:
  uint32_t* next_;
};

/// Rows of a strided matrix by index; only rows in [begin, end) exist, the others read as zero.
template <typename T>
struct RowsView {
  const T* base;
  int64_t stride;
  int64_t first;  ///< row index i is at base + (first + i) · stride
  int64_t begin;
  int64_t end;

  bool has(int64_t i) const { return i >= begin && i < end; }
  const T* row(int64_t i) const { return base + (first + i) * stride; }
};

COTUNE_VECTORS_BEGIN

/// Sixteen words of row i from word w on; words from `words` on are zero.
template <typename T>
inline Words row_words(const RowsView<T>& rows, int64_t i, int64_t w, int64_t words) {
  if (!rows.has(i)) return no_words();
  const FirstLanes lanes = first_lanes(words - w);
  if constexpr (elements_per_word<T> == 2) {
    return load_words(rows.row(i) + w * 2, lanes);
  } else {
    return as_words(load(rows.row(i) + w, lanes));
  }
}

/// Columns c .. c + 15 of word-row j: row j, or where words are pairs rows 2j and 2j + 1 side by side.
template <typename T>
inline Words paired_words(const RowsView<T>& rows, int64_t j, int64_t c) {
  if constexpr (elements_per_word<T> == 2) {
    const auto half = [&](int64_t i) { return rows.has(i) ? load_halves(rows.row(i) + c) : no_words(); };
    return half(2 * j) | (half(2 * j + 1) << 16);
  } else {
    return rows.has(j) ? as_words(load(rows.row(j) + c)) : no_words();
  }
}

/// Left operand: to[i][w], rows 0 .. count - 1, `padded` words each (a multiple of 16).
template <typename T>
void pack_rows(const RowsView<T>& rows, int64_t count, int64_t words, int64_t padded, uint32_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t w = 0; w < padded; w += 16) store_words(to + i * padded + w, row_words(rows, i, w, words));
  }
}

/// Right operand of the same matrix transposed: to[w][i], `count` rows (a multiple of 16).
template <typename T>
void pack_transposed(const RowsView<T>& rows, int64_t count, int64_t words, int64_t padded, uint32_t* to) {
  for (int64_t i = 0; i < count; i += 16) {
    for (int64_t w = 0; w < padded; w += 16) {
      Words block[16];
      for (int r = 0; r < 16; ++r) block[r] = row_words(rows, i + r, w, words);
      transpose(block);
      for (int r = 0; r < 16; ++r) store_words(to + (w + r) * count + i, block[r]);
    }
  }
}

/// Right operand that is summed over rows: to[j][c], word_rows word-rows.
template <typename T>
void pack_paired(const RowsView<T>& rows, int64_t word_rows, int64_t columns, uint32_t* to) {
  for (int64_t j = 0; j < word_rows; ++j) {
    for (int64_t c = 0; c < columns; c += 16) {
      store_words(to + j * columns + c, paired_words(rows, j, c));
    }
  }
}

/// Left operand, the matrix transposed and summed over its rows: to[c][j].
template <typename T>
void pack_paired_transposed(const RowsView<T>& rows, int64_t word_rows, int64_t columns, uint32_t* to) {
  for (int64_t c = 0; c < columns; c += 16) {
    for (int64_t j = 0; j < word_rows; j += 16) {
      Words block[16];
      for (int r = 0; r < 16; ++r) block[r] = paired_words(rows, j + r, c);
      transpose(block);
      for (int r = 0; r < 16; ++r) store_words(to + (c + r) * word_rows + j, block[r]);
    }
  }
}

/// Writes from[c][i] · factor[i] to the rows that exist: row i, columns c. `from` has 32 columns.
template <typename T>
void store_transposed(const float* from, int64_t columns, const float* factor, const RowsView<T>& rows, T* base) {
  for (int64_t i = 0; i < 32; i += 16) {
    const Vector f = load(factor + i);
    for (int64_t c = 0; c < columns; c += 16) {
      Words block[16];
      for (int r = 0; r < 16; ++r) {
        block[r] = as_words(load(from + (c + r) * 32 + i) * f);
      }
      transpose(block);
      for (int r = 0; r < 16; ++r) {
        if (rows.has(i + r)) store(base + (rows.first + i + r) * rows.stride + c, as_vector(block[r]));
      }
    }
  }
}

COTUNE_VECTORS_END

}  // namespace
}  // namespace cotune::kernels
