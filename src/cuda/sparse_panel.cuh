/// Panels: rows of a matrix by tiles of 32, transposed, so that an entry of a sparse delta reads 32 tokens of its column from
/// consecutive bytes. Element (tile, column, token) at (tile·columns + column)·32 + token; zeros beyond a piece's rows.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/row_parts.cuh"

namespace cotune::cuda {

inline constexpr int tile_rows = static_cast<int>(gpu_sparse_tile);
inline constexpr int lane_tokens = 4, team_lanes = tile_rows / lane_tokens;  ///< a team of lanes has a tile's tokens
inline constexpr int most_pieces = 256;                                       ///< of a panel

/// Rows of one job: whole tiles, of which the last may be filled up.
struct Piece {
  int64_t row_begin;
  int32_t rows, first_tile;
};
struct Panel {
  int32_t piece_count = 0, tiles = 0, columns = 0;
  Piece pieces[most_pieces];
};

/// Where a panel's columns are in a matrix.
struct PanelSource {
  const void* values;  ///< at the first column
  int64_t stride;
};

/// Tokens 4·(lane mod 8) … of a column.
__device__ inline void load_tokens(const __nv_bfloat16* from, float (&tokens)[lane_tokens]) {
  const uint2 words = *reinterpret_cast<const uint2*>(from);
  tokens[0] = low_half(words.x), tokens[1] = high_half(words.x);
  tokens[2] = low_half(words.y), tokens[3] = high_half(words.y);
}
__device__ inline void load_tokens(const float* from, float (&tokens)[lane_tokens]) {
  const float4 part = *reinterpret_cast<const float4*>(from);
  tokens[0] = part.x, tokens[1] = part.y, tokens[2] = part.z, tokens[3] = part.w;
}

/// Fills the panel at `to`, whose elements are of the type; name: of the operator, for messages.
void fill_panel(cudaStream_t stream, GpuType type, const char* name, const Panel& panel, const PanelSource& source, void* to);

}  // namespace cotune::cuda
