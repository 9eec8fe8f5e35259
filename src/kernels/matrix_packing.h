/// Inside the matrix kernels: packing a panel with vectors, for adapter factors after every step and for
/// large weights.
#pragma once

#include <cstdint>

#include "kernels/matrix.h"

namespace cotune::kernels {

/// A run of columns of one panel of a PackedMatrix.
struct PanelPiece {
  char* panel = nullptr;
  int64_t first_column = 0;  ///< within the panel
  int64_t count = 0;
  int64_t k = 0;
  DType dtype = DType::f32;
  MatrixView source;  ///< its first column is the piece's first column
  /// Bytes from the rows of 32 of k to those of the next 32 of k, in bf16.
  int64_t step_bytes = 2048;
};

/// The same bits as the plain loop of PackedMatrix::pack_columns.
namespace avx2 {
void pack_panel(const PanelPiece& piece);
}
/// Needs no AVX-512 BF16.
namespace avx512 {
void pack_panel(const PanelPiece& piece);
}

/// A panel of f32 in `parts` bf16 parts; the source is f32 or bf16. Needs AVX-512 BF16.
void pack_panel_in_parts(const PanelPiece& piece, int parts);

}  // namespace cotune::kernels
