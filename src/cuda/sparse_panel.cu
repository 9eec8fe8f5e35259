#include "cuda/sparse_panel.cuh"

namespace cotune::cuda {
namespace {

constexpr int threads = 256, block_columns = 64;

template <typename T>
__global__ void __launch_bounds__(threads)
    panel_kernel(const __grid_constant__ Panel panel, const T* __restrict__ from, int64_t stride, T* __restrict__ to,
                 int blocks_per_tile) {
  const int tile = static_cast<int>(blockIdx.x) / blocks_per_tile;
  const int first_column = static_cast<int>(blockIdx.x) % blocks_per_tile * block_columns;
  int which = 0;
  while (which + 1 < panel.piece_count && panel.pieces[which + 1].first_tile <= tile) ++which;
  const Piece& piece = panel.pieces[which];
  const int first_row = (tile - piece.first_tile) * tile_rows;
  __shared__ float values[block_columns][tile_rows + 1];
  for (int i = static_cast<int>(threadIdx.x); i < block_columns * tile_rows; i += threads) {
    const int row = i / block_columns, column = i % block_columns;
    const bool there = first_row + row < piece.rows && first_column + column < panel.columns;
    values[column][row] =
        there ? widened(from[(piece.row_begin + first_row + row) * stride + first_column + column]) : 0.0f;
  }
  __syncthreads();
  const int columns = min(block_columns, panel.columns - first_column);
  T* place = to + (static_cast<int64_t>(tile) * panel.columns + first_column) * tile_rows;
  for (int i = static_cast<int>(threadIdx.x); i < columns * tile_rows; i += threads) {
    place[i] = rounded<T>(values[i / tile_rows][i % tile_rows]);
  }
}

}  // namespace

void fill_panel(cudaStream_t stream, GpuType type, const char* name, const Panel& panel, const PanelSource& source, void* to) {
  const int64_t blocks_per_tile = divide_up(panel.columns, block_columns);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    launch(name, panel_kernel<T>, panel.tiles * blocks_per_tile, threads, stream, panel, static_cast<const T*>(source.values),
           source.stride, static_cast<T*>(to), static_cast<int>(blocks_per_tile));
  });
}

}  // namespace cotune::cuda
