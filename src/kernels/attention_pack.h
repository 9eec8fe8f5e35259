/// Operands of the attention products, packed in 32-bit words: an f32, or two bf16 that are neighbours along the summed
/// dimension. A left operand is [rows][words], a right operand [words][columns]; products sum over words.
/// Included by the attention kernels only, inside their own stretch of AVX-512 source.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>

#include "kernels/vectors_avx512.h"

namespace cotune::kernels {
namespace {

template <typename T>
constexpr int64_t elements_per_word = 4 / int64_t(sizeof(T));

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

/// Memory of one thread, kept between calls and grown to the largest need.
class Workspace {
 public:
  /// Forgets what was taken; makes room for `words`.
  void reset(int64_t words) {
    if (words > capacity_) {
      memory_.reset(static_cast<uint32_t*>(::operator new(size_t(words) * 4, std::align_val_t(64))));
      capacity_ = words;
    }
    used_ = 0;
  }
  /// Uninitialised, aligned to 64 bytes.
  uint32_t* take(int64_t words) {
    uint32_t* start = memory_.get() + used_;
    used_ += round_up(words, 16);
    return start;
  }
  float* take_floats(int64_t count) { return reinterpret_cast<float*>(take(count)); }

 private:
  struct Free {
    void operator()(uint32_t* memory) const { ::operator delete(memory, std::align_val_t(64)); }
  };
  std::unique_ptr<uint32_t, Free> memory_;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
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

COTUNE_AVX512_BEGIN

/// Sixteen words of row i from word w on; words from `words` on are zero.
template <typename T>
inline __m512i row_words(const RowsView<T>& rows, int64_t i, int64_t w, int64_t words) {
  if (!rows.has(i)) return _mm512_setzero_si512();
  return _mm512_maskz_loadu_epi32(first_lanes(words - w), rows.row(i) + w * elements_per_word<T>);
}

/// Columns c .. c + 15 of word-row j: row j (f32), or rows 2j and 2j + 1 side by side (bf16).
inline __m512i paired_words(const RowsView<float>& rows, int64_t j, int64_t c) {
  return rows.has(j) ? _mm512_loadu_si512(rows.row(j) + c) : _mm512_setzero_si512();
}
inline __m512i paired_words(const RowsView<uint16_t>& rows, int64_t j, int64_t c) {
  const auto half = [&](int64_t i) {
    if (!rows.has(i)) return _mm512_setzero_si512();
    return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows.row(i) + c)));
  };
  return _mm512_or_si512(half(2 * j), _mm512_slli_epi32(half(2 * j + 1), 16));
}

/// Left operand: to[i][w], rows 0 .. count - 1, `padded` words each (a multiple of 16).
template <typename T>
void pack_rows(const RowsView<T>& rows, int64_t count, int64_t words, int64_t padded, uint32_t* to) {
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t w = 0; w < padded; w += 16) _mm512_storeu_si512(to + i * padded + w, row_words(rows, i, w, words));
  }
}

/// Right operand of the same matrix transposed: to[w][i], `count` rows (a multiple of 16).
template <typename T>
void pack_transposed(const RowsView<T>& rows, int64_t count, int64_t words, int64_t padded, uint32_t* to) {
  for (int64_t i = 0; i < count; i += 16) {
    for (int64_t w = 0; w < padded; w += 16) {
      __m512i block[16];
      for (int r = 0; r < 16; ++r) block[r] = row_words(rows, i + r, w, words);
      transpose_words(block);
      for (int r = 0; r < 16; ++r) _mm512_storeu_si512(to + (w + r) * count + i, block[r]);
    }
  }
}

/// Right operand that is summed over rows: to[j][c], word_rows word-rows.
template <typename T>
void pack_paired(const RowsView<T>& rows, int64_t word_rows, int64_t columns, uint32_t* to) {
  for (int64_t j = 0; j < word_rows; ++j) {
    for (int64_t c = 0; c < columns; c += 16) {
      _mm512_storeu_si512(to + j * columns + c, paired_words(rows, j, c));
    }
  }
}

/// Left operand, the matrix transposed and summed over its rows: to[c][j].
template <typename T>
void pack_paired_transposed(const RowsView<T>& rows, int64_t word_rows, int64_t columns, uint32_t* to) {
  for (int64_t c = 0; c < columns; c += 16) {
    for (int64_t j = 0; j < word_rows; j += 16) {
      __m512i block[16];
      for (int r = 0; r < 16; ++r) block[r] = paired_words(rows, j + r, c);
      transpose_words(block);
      for (int r = 0; r < 16; ++r) _mm512_storeu_si512(to + (c + r) * word_rows + j, block[r]);
    }
  }
}

/// Writes from[c][i] · factor[i] to the rows that exist: row i, columns c. `from` has 32 columns.
template <typename T>
void store_transposed(const float* from, int64_t columns, const float* factor, const RowsView<T>& rows, T* base) {
  for (int64_t i = 0; i < 32; i += 16) {
    const __m512 f = _mm512_loadu_ps(factor + i);
    for (int64_t c = 0; c < columns; c += 16) {
      __m512i block[16];
      for (int r = 0; r < 16; ++r) {
        block[r] = _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(from + (c + r) * 32 + i), f));
      }
      transpose_words(block);
      for (int r = 0; r < 16; ++r) {
        if (rows.has(i + r)) store(base + (rows.first + i + r) * rows.stride + c, _mm512_castsi512_ps(block[r]));
      }
    }
  }
}

COTUNE_AVX512_END

}  // namespace
}  // namespace cotune::kernels
