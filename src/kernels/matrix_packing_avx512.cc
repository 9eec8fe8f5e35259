#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 on its own immintrin.h (GCC bug 105593)
#include <immintrin.h>

#include "kernels/matrix_packing.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq")

#include "kernels/matrix_transpose.h"

namespace cotune::kernels {
namespace {

inline __mmask16 first_lanes(int64_t count) {
  return count >= 16  ? __mmask16{0xffff}
         : count <= 0 ? __mmask16{0}
                      : static_cast<__mmask16>((1u << count) - 1);
}

/// f32 bits → bf16 bits in the low half of each lane: to nearest even, NaN stays NaN.
inline __m512i round_lanes(__m512i bits) {
  const __m512i high = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512 value = _mm512_castsi512_ps(bits);
  const __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
  return _mm512_mask_or_epi32(rounded, nan, high, _mm512_set1_epi32(0x40));
}

/// 16 elements at `from` as bf16 bits in the low half of each lane.
inline __m512i load_rounded(const char* from, DType dtype, __mmask16 lanes) {
  if (dtype == DType::bf16) return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, from));
  return round_lanes(_mm512_maskz_loadu_epi32(lanes, from));
}

/// 32 elements at `from` as bf16 words, `count` of them.
inline __m512i load_words(const char* from, DType dtype, int64_t count) {
  if (dtype == DType::bf16) {
    const __mmask32 words = count >= 32 ? ~__mmask32{0} : (__mmask32{1} << count) - 1;
    return _mm512_maskz_loadu_epi16(words, from);
  }
  const __m256i low = _mm512_cvtepi32_epi16(round_lanes(_mm512_maskz_loadu_epi32(first_lanes(count), from)));
  const __m256i high =
      _mm512_cvtepi32_epi16(round_lanes(_mm512_maskz_loadu_epi32(first_lanes(count - 16), from + 64)));
  return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
}

// A panel is rows of 32 lanes; a lane holds a pair of k in bf16 and one k in f32 (`group` below).
constexpr int64_t lane_row_bytes = 128;

/// Where a row of lanes of a panel begins; 16 of them are 32 of k in bf16.
inline int64_t lane_row_offset(const PanelPiece& piece, int64_t index) {
  if (piece.dtype == DType::f32) return index * lane_row_bytes;
  return index / 16 * piece.step_bytes + index % 16 * lane_row_bytes;
}

void pack_from_rows(const PanelPiece& piece) {
  const MatrixView& source = piece.source;
  const int64_t element = bytes_of(source.dtype);
  const int64_t row_bytes = source.stride * element;
  const auto* from = static_cast<const char*>(source.data);
  const int64_t group = piece.dtype == DType::bf16 ? 2 : 1;
  for (int64_t i = 0; i < piece.k; i += group, from += group * row_bytes) {
    char* to = piece.panel + lane_row_offset(piece, i / group) + piece.first_column * 4;
    for (int64_t j = 0; j < piece.count; j += 16) {
      const __mmask16 lanes = first_lanes(piece.count - j);
      const char* first = from + j * element;
      __m512i value;
      if (group == 1) {
        value = _mm512_maskz_loadu_epi32(lanes, first);
      } else {
        value = load_rounded(first, source.dtype, lanes);
        if (i + 1 < piece.k)
          value = _mm512_or_si512(
              value, _mm512_slli_epi32(load_rounded(first + row_bytes, source.dtype, lanes), 16));
      }
      _mm512_mask_storeu_epi32(to + j * 4, lanes, value);
    }
  }
}

void pack_from_columns(const PanelPiece& piece) {
  const MatrixView& source = piece.source;
  const int64_t element = bytes_of(source.dtype);
  const int64_t group = piece.dtype == DType::bf16 ? 2 : 1;
  for (int64_t j = 0; j < piece.count; j += 16) {
    const __mmask16 lanes = first_lanes(piece.count - j);
    for (int64_t i = 0; i < piece.k; i += 16 * group) {
      __m512i block[16];
      for (int64_t c = 0; c < 16; ++c) {
        const char* from = static_cast<const char*>(source.data) + ((j + c) * source.stride + i) * element;
        block[c] = j + c >= piece.count ? _mm512_setzero_si512()
                   : group == 1         ? _mm512_maskz_loadu_epi32(first_lanes(piece.k - i), from)
                                        : load_words(from, source.dtype, piece.k - i);
      }
      transpose_16x16(block);
      char* to = piece.panel + lane_row_offset(piece, i / group) + (piece.first_column + j) * 4;
      for (int64_t r = 0; r < 16 && i + r * group < piece.k; ++r)
        _mm512_mask_storeu_epi32(to + r * lane_row_bytes, lanes, block[r]);
    }
  }
}

}  // namespace

void pack_panel_avx512(const PanelPiece& piece) {
  if (piece.source.order == MatrixView::Order::rows) {
    pack_from_rows(piece);
  } else {
    pack_from_columns(piece);
  }
}

}  // namespace cotune::kernels
