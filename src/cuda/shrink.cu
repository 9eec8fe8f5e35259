// s = scale · x·Fᵀ. A block has 32 rows of x and up to 64 factor rows, of all groups that have these rows: x comes from memory
// once for the adapters of q, k and v. Its 8 warps divide the width among them and add their sums up in a fixed order. A
// lane's part of x and of F is 8 consecutive columns: two steps of the inner index.

#include <algorithm>
#include <numeric>
#include <vector>

#include "cuda/launch.cuh"
#include "cuda/low_rank.h"
#include "cuda/tensor_core.cuh"

namespace cotune::cuda {
namespace {

constexpr int block_rows = 32, warps = 8, chunk = 32;  // chunk: columns of x that a warp reads at a time
constexpr int tile_ranks = 8, most_tiles = 8;          // of a block
constexpr int64_t large_bytes = int64_t{32} << 20;     // of x: then it is to be read once
constexpr int most_parts = 384, most_bundles = 128;    // of a launch, which takes them as parameters (at most 32 KiB)

/// Eight rows of one group's factor.
struct Tile {
  const __nv_bfloat16* factor;
  __nv_bfloat16* s;
  int32_t ranks, s_stride;
  float scale;
};
/// Tiles of the same rows.
struct Bundle {
  int64_t row_begin;
  int32_t rows, first_block, first_tile, tiles;
};
struct Call {
  int32_t bundle_count = 0, blocks = 0, tile_count = 0;
  Bundle bundles[most_bundles];
  Tile tiles[most_parts];
};
static_assert(sizeof(Call) < 24 * 1024);

template <int tiles>
__global__ void __launch_bounds__(32 * warps) shrink_kernel(const __grid_constant__ Call call,
                                                            const __nv_bfloat16* __restrict__ x, int64_t x_stride,
                                                            int width) {
  const int block = static_cast<int>(blockIdx.x), warp = static_cast<int>(threadIdx.x) / 32;
  const auto [g, t] = this_lane();
  const Bundle& bundle = call.bundles[entry_of_block(call.bundles, call.bundle_count)];
  const int first_row = (block - bundle.first_block) * block_rows;

  const __nv_bfloat16* rows[4];
  bool has_row[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first_row + 8 * i + g;
    has_row[i] = row < bundle.rows;
    rows[i] = x + (bundle.row_begin + (has_row[i] ? row : 0)) * x_stride + 8 * t;
  }
  const __nv_bfloat16* factor[tiles];
  bool has_rank[tiles];
#pragma unroll
  for (int n = 0; n < tiles; ++n) {
    const Tile& tile = call.tiles[bundle.first_tile + min(n, bundle.tiles - 1)];
    has_rank[n] = n < bundle.tiles && g < tile.ranks;
    factor[n] = tile.factor + static_cast<int64_t>(has_rank[n] ? g : 0) * width + 8 * t;
  }

  float sums[2][tiles][4] = {};
#pragma unroll 2
  for (int column = warp * chunk; column < width; column += warps * chunk) {
    const bool inside = column + 8 * t < width;
    uint4 a[4], f[tiles];
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = load16_or_zero(rows[i] + column, inside && has_row[i]);
#pragma unroll
    for (int n = 0; n < tiles; ++n) f[n] = load16_or_zero(factor[n] + column, inside && has_rank[n]);
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const uint32_t first[4] = {a[2 * m].x, a[2 * m + 1].x, a[2 * m].y, a[2 * m + 1].y};
      const uint32_t second[4] = {a[2 * m].z, a[2 * m + 1].z, a[2 * m].w, a[2 * m + 1].w};
#pragma unroll
      for (int n = 0; n < tiles; ++n) {
        multiply_add(sums[m][n], first, f[n].x, f[n].y);
        multiply_add(sums[m][n], second, f[n].z, f[n].w);
      }
    }
  }

  // Warps 4 to 7 add to what warps 0 to 3 have left; then each element's four sums are added.
  __shared__ float partial[warps / 2][block_rows][tile_ranks * tiles];
  for (int half = 0; half < 2; ++half) {
    if (warp / (warps / 2) == half) {
#pragma unroll
      for (int m = 0; m < 2; ++m) {
#pragma unroll
        for (int n = 0; n < tiles; ++n) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            float& sum = partial[warp % (warps / 2)][16 * m + 8 * (c / 2) + g][8 * n + 2 * t + c % 2];
            sum = half == 0 ? sums[m][n][c] : sum + sums[m][n][c];
          }
        }
      }
    }
    __syncthreads();
  }
  for (int i = static_cast<int>(threadIdx.x); i < block_rows * tile_ranks * tiles; i += 32 * warps) {
    const int row = i / (tile_ranks * tiles), column = i % (tile_ranks * tiles);
    if (first_row + row >= bundle.rows || column / tile_ranks >= bundle.tiles) continue;
    const Tile& tile = call.tiles[bundle.first_tile + column / tile_ranks];
    float sum = 0;
    for (int w = 0; w < warps / 2; ++w) sum += partial[w][row][column];
    tile.s[static_cast<int64_t>(first_row + row) * tile.s_stride + column % tile_ranks] =
        __float2bfloat16_rn(sum * tile.scale);
  }
}

void launch(cudaStream_t stream, const Call& call, const __nv_bfloat16* x, int64_t x_stride, int width) {
  if (call.blocks == 0) return;
  int tiles = 0;
  for (int i = 0; i < call.bundle_count; ++i) tiles = std::max(tiles, call.bundles[i].tiles);
  const dim3 grid(static_cast<unsigned>(call.blocks)), block(32 * warps);
  const auto kernel = tiles <= 1   ? shrink_kernel<1>
                      : tiles <= 2 ? shrink_kernel<2>
                      : tiles <= 4 ? shrink_kernel<4>
                      : tiles <= 6 ? shrink_kernel<6>
                                   : shrink_kernel<8>;
  kernel<<<grid, block, 0, stream>>>(call, x, x_stride, width);
  check_launch("shrink");
}

}  // namespace

void launch_shrink(cudaStream_t stream, std::span<const GpuShrink> groups, const void* x, int64_t x_stride,
                   int64_t width) {
  std::vector<size_t> order(groups.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const GpuRows &first = groups[a].rows, &second = groups[b].rows;
    return first.begin != second.begin ? first.begin < second.begin : first.end < second.end;
  });
  const auto* values = static_cast<const __nv_bfloat16*>(x);
  int64_t all_rows = 0;
  for (const GpuShrink& group : groups) all_rows += group.rows.count();
  // What the cache holds can be read again, by more blocks.
  const int bundle_tiles = all_rows * width * 2 > large_bytes ? most_tiles : 2;
  Call call;
  const GpuRows* last = nullptr;  // of the bundle that takes more tiles
  for (const size_t index : order) {
    const GpuShrink& group = groups[index];
    if (group.rows.count() == 0) continue;
    for (int64_t rank = 0; rank < group.s_stride; rank += tile_ranks) {
      const bool joins = last != nullptr && last->begin == group.rows.begin && last->end == group.rows.end &&
                         call.bundles[call.bundle_count - 1].tiles < bundle_tiles;
      const bool full = call.tile_count == most_parts || (!joins && call.bundle_count == most_bundles);
      if (full) {
        launch(stream, call, values, x_stride, static_cast<int>(width));
        call.bundle_count = call.blocks = call.tile_count = 0;
      }
      if (full || !joins) {
        call.bundles[call.bundle_count++] = {group.rows.begin, static_cast<int32_t>(group.rows.count()), call.blocks,
                                             call.tile_count, 0};
        call.blocks += static_cast<int32_t>(divide_up(group.rows.count(), block_rows));
        last = &group.rows;
      }
      ++call.bundles[call.bundle_count - 1].tiles;
      call.tiles[call.tile_count++] = {static_cast<const __nv_bfloat16*>(group.factor) + rank * width,
                                       static_cast<__nv_bfloat16*>(group.s) + rank,
                                       static_cast<int32_t>(std::clamp<int64_t>(group.rank - rank, 0, tile_ranks)),
                                       static_cast<int32_t>(group.s_stride), group.scale};
    }
  }
  launch(stream, call, values, x_stride, static_cast<int>(width));
}

}  // namespace cotune::cuda
