/// Packing f32 matrices as sums of bf16 parts: each part is packed as a bf16 matrix of its own, between the
/// others' rows.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 on its own immintrin.h (GCC bug 105593)
#include <immintrin.h>

#include <algorithm>
#include <vector>

#include "kernels/matrix_packing.h"

#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")

#include "kernels/float_parts_avx512.h"

namespace cotune::kernels {
namespace {

constexpr int64_t lanes = 16;
constexpr int64_t part_step_bytes = float_part_depth * PackedMatrix::panel_columns * 2;

inline __m512 load_lanes(const char* from, DType dtype, __mmask16 mask) {
  if (dtype == DType::f32) return _mm512_maskz_loadu_ps(mask, from);
  return _mm512_castsi512_ps(
      _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, from)), 16));
}

}  // namespace

void pack_panel_in_parts(const PanelPiece& piece, int parts) {
  const MatrixView& source = piece.source;
  const bool by_rows = source.order == MatrixView::Order::rows;
  // A stretch of the piece in each part, in the source's order, small enough for the first-level cache.
  constexpr int64_t stretch = 4 * float_part_depth;
  thread_local std::vector<uint16_t> scratch(largest_part_count * stretch * PackedMatrix::panel_columns);
  for (int64_t k = 0; k < piece.k; k += stretch) {
    const int64_t depth = std::min(stretch, piece.k - k);
    const int64_t rows = by_rows ? depth : piece.count;
    const int64_t columns = by_rows ? piece.count : depth;
    const int64_t stride = (columns + lanes - 1) / lanes * lanes;
    const int64_t part_words = rows * stride;
    const char* from =
        static_cast<const char*>(source.data) + k * (by_rows ? source.stride : 1) * bytes_of(source.dtype);
    for (int64_t row = 0; row < rows; ++row, from += source.stride * bytes_of(source.dtype)) {
      for (int64_t column = 0; column < columns; column += lanes) {
        const int64_t left = columns - column;
        const auto mask = static_cast<__mmask16>(left >= lanes ? 0xffff : (1u << left) - 1);
        const LaneParts split =
            split_lanes(load_lanes(from + column * bytes_of(source.dtype), source.dtype, mask));
        for (int part = 0; part < parts; ++part) {
          _mm256_storeu_si256(
              reinterpret_cast<__m256i*>(scratch.data() + part * part_words + row * stride + column),
              split.part[part]);
        }
      }
    }
    PanelPiece stretch_piece = piece;
    stretch_piece.dtype = DType::bf16;
    stretch_piece.k = depth;
    stretch_piece.step_bytes = parts * part_step_bytes;
    for (int part = 0; part < parts; ++part) {
      stretch_piece.panel =
          piece.panel + k / float_part_depth * stretch_piece.step_bytes + part * part_step_bytes;
      stretch_piece.source = {scratch.data() + part * part_words, stride, DType::bf16, source.order};
      avx512::pack_panel(stretch_piece);
    }
  }
}

}  // namespace cotune::kernels
