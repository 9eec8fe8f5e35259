#include "kernels/matrix_packing.h"

#include "kernels/vectors.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

// A panel is rows of 32 lanes; a lane holds a pair of k in bf16 and one k in f32.
constexpr int64_t lane_row_bytes = 128;

COTUNE_VECTORS_BEGIN

/// Sixteen elements as bf16 in the lower halves.
inline Words as_bf16(const float* from, FirstLanes lanes) { return rounded(load(from, lanes)); }
inline Words as_bf16(const uint16_t* from, FirstLanes lanes) { return load_halves(from, lanes); }

/// Sixteen pairs of `count` neighbours as bf16.
template <typename T>
inline Words pairs_of_bf16(const T* from, int64_t count) {
  if (sizeof(T) == 2 && count >= 32) return load_words(from);
  return side_by_side(as_bf16(from, first_lanes(count)), count > 16 ? as_bf16(from + 16, first_lanes(count - 16)) : no_words());
}

/// Where a row of lanes of a panel begins; 16 of them are 32 of k in bf16.
inline int64_t lane_row_offset(const PanelPiece& piece, int64_t index) {
  if (piece.dtype == DType::f32) return index * lane_row_bytes;
  return index / 16 * piece.step_bytes + index % 16 * lane_row_bytes;
}

template <int group, typename T>
void pack_from_rows(const PanelPiece& piece, const T* from) {
  const int64_t stride = piece.source.stride;
  for (int64_t i = 0; i < piece.k; i += group, from += group * stride) {
    char* to = piece.panel + lane_row_offset(piece, i / group) + piece.first_column * 4;
    for (int64_t j = 0; j < piece.count; j += lane_count) {
      const FirstLanes lanes = first_lanes(piece.count - j);
      Words value;
      if constexpr (group == 1) {
        value = as_words(load(from + j, lanes));
      } else {
        value = as_bf16(from + j, lanes);
        if (i + 1 < piece.k) value = value | (as_bf16(from + stride + j, lanes) << 16);
      }
      store_words(to + j * 4, value, lanes);
    }
  }
}

template <int group, typename T>
void pack_from_columns(const PanelPiece& piece, const T* from) {
  for (int64_t j = 0; j < piece.count; j += lane_count) {
    const FirstLanes lanes = first_lanes(piece.count - j);
    for (int64_t i = 0; i < piece.k; i += lane_count * group) {
      Words block[16];
      for (int64_t c = 0; c < lane_count; ++c) {
        const T* column = from + (j + c) * piece.source.stride + i;
        if (j + c >= piece.count) {
          block[c] = no_words();
        } else if constexpr (group == 1) {
          block[c] = as_words(load(column, first_lanes(piece.k - i)));
        } else {
          block[c] = pairs_of_bf16(column, piece.k - i);
        }
      }
      transpose(block);
      char* to = piece.panel + lane_row_offset(piece, i / group) + (piece.first_column + j) * 4;
      for (int64_t r = 0; r < lane_count && i + r * group < piece.k; ++r) store_words(to + r * lane_row_bytes, block[r], lanes);
    }
  }
}

COTUNE_VECTORS_END

template <int group, typename T>
void pack(const PanelPiece& piece) {
  const auto* from = static_cast<const T*>(piece.source.data);
  if (piece.source.order == MatrixView::Order::rows) {
    pack_from_rows<group>(piece, from);
  } else {
    pack_from_columns<group>(piece, from);
  }
}

}  // namespace

void pack_panel(const PanelPiece& piece) {
  with_element(piece.source.dtype, [&](auto element) {
    using T = decltype(element);
    piece.dtype == DType::bf16 ? pack<2, T>(piece) : pack<1, T>(piece);
  });
}

}  // namespace cotune::kernels::COTUNE_VECTORS
