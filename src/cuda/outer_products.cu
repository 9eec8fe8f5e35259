// gradient += leftᵀ·right. Groups of one gradient whose rows follow one another are one run of rows, and runs are taken in
// chunks of 1024: atoms have 256, too few to pay for a sum of their own. A block has 64 columns of right, one chunk, and up to
// 48 ranks, of all gradients that have the same rows: right comes from memory once for the adapters of q, k and v. Its 8
// warps divide the chunk's rows among them and add their sums up in a fixed order. A gradient of one chunk gets its sum
// there and then; else the chunks' sums go to the workspace, and another kernel adds them in order, run by run. A lane's
// part of a row of right is 8 consecutive columns; rows are paired in registers.

#include <algorithm>
#include <iterator>
#include <vector>

#include "cuda/grouping.h"
#include "cuda/launch.cuh"
#include "cuda/low_rank.h"
#include "cuda/tensor_core.cuh"

namespace cotune::cuda {
namespace {

constexpr int warps = 8, block_columns = 64, tile_ranks = 16, step_rows = 16, chunk_rows = 1024;
constexpr int most_tiles = 3;                         // of a block
constexpr int64_t large_bytes = int64_t{32} << 20;    // of right: then it is to be read once
constexpr int most_bundles = 128, most_parts = 256, most_chunks = 512, most_lefts = 512;  // of a launch: see Call

struct Left {
  const __nv_bfloat16* values;  ///< at the tile's first rank and the chunk's first row
  int64_t stride;
};
/// Rows of one run.
struct Chunk {
  int64_t row_begin;
  int32_t rows, bundle;
  bool ends_run;
};
/// Sixteen ranks of a gradient.
struct Tile {
  float* gradient;
  float* partial;  ///< [chunks of the bundle, 16, width]; nullptr where there is one chunk
  int32_t ranks, first_left;
};
/// Tiles of the same chunks.
struct Bundle {
  int32_t first_tile, tiles, first_chunk, chunks;
};
/// Passed as the launch's parameters, at most 32 KiB.
struct Call {
  int32_t bundle_count = 0, tile_count = 0, chunk_count = 0, left_count = 0;
  Bundle bundles[most_bundles];
  Tile tiles[most_parts];
  Chunk chunks[most_chunks];
  Left lefts[most_lefts];
};
static_assert(sizeof(Call) < 32 * 1024);

/// What a lane reads of a step of 16 rows: rows 2t, 2t + 1, 2t + 8, 2t + 9 of right and, of each left, ranks 2g, 2g + 1.
template <int tiles>
struct Step {
  uint4 right[4];
  uint32_t left[tiles][4];
};

template <int tiles>
__global__ void __launch_bounds__(32 * warps)
    outer_kernel(const __grid_constant__ Call call, const __nv_bfloat16* __restrict__ right, int64_t right_stride,
                 int width) {
  const int chunk_index = static_cast<int>(blockIdx.y);
  const Chunk& chunk = call.chunks[chunk_index];
  const Bundle& bundle = call.bundles[chunk.bundle];
  const int place = chunk_index - bundle.first_chunk;  // of the chunk in its bundle
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const auto [g, t] = this_lane();
  const int column = static_cast<int>(blockIdx.x) * block_columns + 8 * g;
  const bool has_column = column < width;
  __shared__ float total[tiles * 32][32];  // of a block's sums, in the order of their registers

  const __nv_bfloat16* lefts[tiles];
  int64_t left_strides[tiles];
  bool has_ranks[tiles];
#pragma unroll
  for (int m = 0; m < tiles; ++m) {
    const Tile& tile = call.tiles[bundle.first_tile + min(m, bundle.tiles - 1)];
    const Left& left = call.lefts[tile.first_left + place];
    lefts[m] = left.values + 2 * g;
    left_strides[m] = left.stride;
    has_ranks[m] = m < bundle.tiles && 2 * g < tile.ranks;
  }
  const auto read = [&](int first, Step<tiles>& step) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + 2 * t + 8 * (i / 2) + i % 2;
      const bool has_row = row < chunk.rows;
      step.right[i] = load16_or_zero(right + (chunk.row_begin + row) * right_stride + column, has_row && has_column);
#pragma unroll
      for (int m = 0; m < tiles; ++m) {
        step.left[m][i] = load4_or_zero(lefts[m] + row * left_strides[m], has_row && has_ranks[m]);
      }
    }
  };

  float sums[tiles][8][4] = {};
  Step<tiles> next;
  read(warp * step_rows, next);
  for (int first = warp * step_rows; first < chunk.rows; first += warps * step_rows) {
    const Step<tiles> step = next;
    read(first + warps * step_rows, next);  // on its way while the tensor cores work
    const uint32_t pairs[4][4] = {{step.right[0].x, step.right[0].y, step.right[0].z, step.right[0].w},
                                  {step.right[1].x, step.right[1].y, step.right[1].z, step.right[1].w},
                                  {step.right[2].x, step.right[2].y, step.right[2].z, step.right[2].w},
                                  {step.right[3].x, step.right[3].y, step.right[3].z, step.right[3].w}};
    uint32_t left[tiles][4];
#pragma unroll
    for (int m = 0; m < tiles; ++m) {
      // Rows of the fragment: g is rank 2g, g + 8 is rank 2g + 1.
      left[m][0] = lower_halves(step.left[m][0], step.left[m][1]);
      left[m][1] = upper_halves(step.left[m][0], step.left[m][1]);
      left[m][2] = lower_halves(step.left[m][2], step.left[m][3]);
      left[m][3] = upper_halves(step.left[m][2], step.left[m][3]);
    }
#pragma unroll
    for (int n = 0; n < 8; ++n) {  // column 8g + n of lane g
      const int word = n / 2;
      const uint32_t b0 = n % 2 == 0 ? lower_halves(pairs[0][word], pairs[1][word])
                                     : upper_halves(pairs[0][word], pairs[1][word]);
      const uint32_t b1 = n % 2 == 0 ? lower_halves(pairs[2][word], pairs[3][word])
                                     : upper_halves(pairs[2][word], pairs[3][word]);
#pragma unroll
      for (int m = 0; m < tiles; ++m) multiply_add(sums[m][n], left[m], b0, b1);
    }
  }
  for (int w = 0; w < warps; ++w) {
    if (warp == w) {
#pragma unroll
      for (int m = 0; m < tiles; ++m) {
#pragma unroll
        for (int n = 0; n < 8; ++n) {
#pragma unroll
          for (int c = 0; c < 4; ++c) {
            float& sum = total[m * 32 + n * 4 + c][lane];
            sum = w == 0 ? sums[m][n][c] : sum + sums[m][n][c];
          }
        }
      }
    }
    __syncthreads();
  }
  // A warp writes rows of sums that a lane has: rank 2g + upper of a tile, columns 8(2t + odd) + n.
  for (int part = warp; part < 4 * bundle.tiles; part += warps) {
    const int m = part / 4, upper = part / 2 % 2, odd = part % 2;
    const Tile& tile = call.tiles[bundle.first_tile + m];
    const int rank = 2 * g + upper;
    const int first_column = static_cast<int>(blockIdx.x) * block_columns + 8 * (2 * t + odd);
    if (rank >= tile.ranks || first_column >= width) continue;
    const bool adds = tile.partial == nullptr;
    float* row = adds ? tile.gradient + static_cast<int64_t>(rank) * width
                      : tile.partial + (static_cast<int64_t>(place) * tile_ranks + rank) * width;
    auto* to = reinterpret_cast<float4*>(row + first_column);
    for (int half = 0; half < 2; ++half) {
      const auto sum = [&](int n) { return total[m * 32 + (4 * half + n) * 4 + 2 * upper + odd][lane]; };
      float4 values = adds ? to[half] : make_float4(0, 0, 0, 0);
      values.x += sum(0);
      values.y += sum(1);
      values.z += sum(2);
      values.w += sum(3);
      to[half] = values;
    }
  }
}

constexpr int add_threads = 256;

/// Of one tile, gradient += the sum of a run's chunks, run after run. A thread has four columns of a rank.
__global__ void __launch_bounds__(add_threads) add_chunks_kernel(const __grid_constant__ Call call, int width) {
  const Bundle* bundle = call.bundles;
  const int index = static_cast<int>(blockIdx.z);
  while (index >= bundle->first_tile + bundle->tiles) ++bundle;
  const Tile& tile = call.tiles[index];
  const int rank = static_cast<int>(blockIdx.y);
  const int column = 4 * static_cast<int>(blockIdx.x * add_threads + threadIdx.x);
  if (tile.partial == nullptr || rank >= tile.ranks || column >= width) return;
  auto* to = reinterpret_cast<float4*>(tile.gradient + static_cast<int64_t>(rank) * width + column);
  float4 gradient = *to, sum = make_float4(0, 0, 0, 0);
  for (int i = 0; i < bundle->chunks; ++i) {
    const float* row = tile.partial + (static_cast<int64_t>(i) * tile_ranks + rank) * width;
    const float4 part = *reinterpret_cast<const float4*>(row + column);
    sum.x += part.x;
    sum.y += part.y;
    sum.z += part.z;
    sum.w += part.w;
    if (!call.chunks[bundle->first_chunk + i].ends_run) continue;
    gradient.x += sum.x;
    gradient.y += sum.y;
    gradient.z += sum.z;
    gradient.w += sum.w;
    sum = make_float4(0, 0, 0, 0);
  }
  *to = gradient;
}

void launch(cudaStream_t stream, const Call& call, const __nv_bfloat16* right, int64_t right_stride, int width) {
  if (call.bundle_count == 0) return;
  int tiles = 0;
  for (int i = 0; i < call.bundle_count; ++i) tiles = std::max(tiles, call.bundles[i].tiles);
  const dim3 grid(static_cast<unsigned>(divide_up(width, block_columns)), static_cast<unsigned>(call.chunk_count));
  const auto kernel = tiles <= 1 ? outer_kernel<1> : tiles <= 2 ? outer_kernel<2> : outer_kernel<3>;
  kernel<<<grid, 32 * warps, 0, stream>>>(call, right, right_stride, width);
  check_launch("outer_products");
  const bool in_chunks = std::any_of(call.tiles, call.tiles + call.tile_count, [](const Tile& tile) { return tile.partial != nullptr; });
  if (!in_chunks) return;
  const dim3 add_grid(static_cast<unsigned>(divide_up(width, 4 * add_threads)), tile_ranks, static_cast<unsigned>(call.tile_count));
  add_chunks_kernel<<<add_grid, add_threads, 0, stream>>>(call, width);
  check_launch("outer_products, sums of chunks");
}

/// The runs of one gradient, ascending: its groups, neighbours joined.
using Target = std::vector<GpuOuter>;

bool follows(const GpuOuter& next, const GpuOuter& before) {
  const auto* left = static_cast<const __nv_bfloat16*>(before.left) + before.rows.count() * before.left_stride;
  return next.rows.begin == before.rows.end && next.left_stride == before.left_stride && next.left == left;
}

bool same_runs(const Target& a, const Target& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const GpuOuter& first, const GpuOuter& second) { return same_rows(first.rows, second.rows); });
}

/// Targets of the same runs, which share what is read of right.
using Alike = std::vector<Target>;

std::vector<Alike> targets_of(std::span<const GpuOuter> groups) {
  Target all;
  std::copy_if(groups.begin(), groups.end(), std::back_inserter(all), [](const GpuOuter& group) { return group.rows.count() > 0; });
  std::vector<Target> targets =
      kinds_of(std::move(all), [](const GpuOuter& a, const GpuOuter& b) { return a.gradient == b.gradient; });
  for (Target& target : targets) {
    std::stable_sort(target.begin(), target.end(),
                     [](const GpuOuter& a, const GpuOuter& b) { return a.rows.begin < b.rows.begin; });
    Target joined;
    for (const GpuOuter& group : target) {
      if (!joined.empty() && follows(group, joined.back())) {
        joined.back().rows.end = group.rows.end;
      } else {
        joined.push_back(group);
      }
    }
    target = std::move(joined);
  }
  return kinds_of(std::move(targets), same_runs);
}

/// Rows [begin, begin + rows) of a run of a target.
struct RunChunk {
  size_t run;
  int64_t begin;
  int32_t rows;
  bool ends_run;
};
std::vector<RunChunk> chunks_of(const Target& target) {
  std::vector<RunChunk> chunks;
  for (size_t run = 0; run < target.size(); ++run) {
    const int64_t rows = target[run].rows.count();
    for (int64_t begin = 0; begin < rows; begin += chunk_rows) {
      const int64_t count = std::min<int64_t>(chunk_rows, rows - begin);
      chunks.push_back({run, begin, static_cast<int32_t>(count), begin + count == rows});
    }
  }
  return chunks;
}

/// Fills calls and launches them when they are full.
class Launcher {
 public:
  Launcher(cudaStream_t stream, const void* right, int64_t right_stride, int64_t width, int bundle_tiles, float* workspace,
           int64_t workspace_values)
      : stream_(stream),
        right_(static_cast<const __nv_bfloat16*>(right)),
        right_stride_(right_stride),
        width_(width),
        bundle_tiles_(bundle_tiles),
        workspace_(workspace),
        workspace_values_(workspace_values) {}

  /// Targets of the same rows; these of their chunks. The chunks' sums are added in a pass of their own where there are several.
  void add(const Alike& targets, std::span<const RunChunk> chunks) {
    const auto count = static_cast<int32_t>(chunks.size());
    Bundle* bundle = nullptr;
    for (const Target& target : targets) {
      const GpuOuter& of = target.front();
      for (int64_t rank = 0; rank < of.rank; rank += tile_ranks) {
        if (bundle != nullptr && bundle->tiles == bundle_tiles_) bundle = nullptr;
        const int64_t partial_values = count > 1 ? int64_t{count} * tile_ranks * width_ : 0;
        const bool full = call_.tile_count == most_parts || call_.left_count + count > most_lefts ||
                          used_values_ + partial_values > workspace_values_ ||
                          (bundle == nullptr && (call_.chunk_count + count > most_chunks || call_.bundle_count == most_bundles));
        if (full) {
          flush();
          bundle = nullptr;
        }
        if (bundle == nullptr) bundle = begin_bundle(target, chunks);
        Tile& tile = call_.tiles[call_.tile_count++];
        tile = {of.gradient + rank * width_, nullptr, static_cast<int32_t>(std::min<int64_t>(of.rank - rank, tile_ranks)),
                call_.left_count};
        if (count > 1) {
          tile.partial = workspace_ + used_values_;
          used_values_ += partial_values;
        }
        ++bundle->tiles;
        for (const RunChunk& chunk : chunks) {
          const GpuOuter& run = target[chunk.run];
          call_.lefts[call_.left_count++] = {
              static_cast<const __nv_bfloat16*>(run.left) + chunk.begin * run.left_stride + rank, run.left_stride};
        }
      }
    }
  }

  void flush() {
    launch(stream_, call_, right_, right_stride_, static_cast<int>(width_));
    call_.bundle_count = call_.tile_count = call_.chunk_count = call_.left_count = 0;
    used_values_ = 0;  // the stream orders the next launch behind this one
  }

 private:
  Bundle* begin_bundle(const Target& target, std::span<const RunChunk> chunks) {
    Bundle* bundle = &call_.bundles[call_.bundle_count];
    *bundle = {call_.tile_count, 0, call_.chunk_count, static_cast<int32_t>(chunks.size())};
    for (const RunChunk& chunk : chunks) {
      call_.chunks[call_.chunk_count++] = {target[chunk.run].rows.begin + chunk.begin, chunk.rows, call_.bundle_count,
                                           chunk.ends_run};
    }
    ++call_.bundle_count;
    return bundle;
  }

  cudaStream_t stream_;
  const __nv_bfloat16* right_;
  int64_t right_stride_, width_;
  int bundle_tiles_;
  float* workspace_;
  int64_t workspace_values_, used_values_ = 0;
  Call call_;
};

constexpr int64_t most_workspace_bytes = int64_t{64} << 20;
constexpr size_t most_chunks_at_once = most_chunks / 2;

/// Calls take(chunks) for parts of a target's chunks, whole runs each, that a launch holds.
template <typename Take>
void for_each_part(const std::vector<RunChunk>& chunks, Take take) {
  for (size_t first = 0; first < chunks.size();) {
    size_t last = std::min(chunks.size(), first + most_chunks_at_once);
    while (last < chunks.size() && last > first && !chunks[last - 1].ends_run) --last;
    if (last == first) refuse("outer_products", "a run of more than " + std::to_string(most_chunks_at_once * chunk_rows) + " rows");
    take(std::span(chunks).subspan(first, last - first));
    first = last;
  }
}

int64_t tiles_of(int64_t rank) { return divide_up(rank, tile_ranks); }

/// Of what sums of chunks take, of targets that have several, as much as most_workspace_bytes or the largest tile's.
int64_t workspace_bytes(const std::vector<Alike>& targets, int64_t width) {
  int64_t values = 0, largest = 0;
  for (const Alike& alike : targets) {
    int64_t tiles = 0;
    for (const Target& target : alike) tiles += tiles_of(target.front().rank);
    for_each_part(chunks_of(alike.front()), [&](std::span<const RunChunk> part) {
      if (part.size() < 2) return;
      const int64_t of_tile = static_cast<int64_t>(part.size()) * tile_ranks * width;
      values += tiles * of_tile;
      largest = std::max(largest, of_tile);
    });
  }
  constexpr auto element = static_cast<int64_t>(sizeof(float));
  return element * std::min(values, std::max(largest, most_workspace_bytes / element));
}

}  // namespace

void launch_outer_products(cudaStream_t stream, std::span<const GpuOuter> groups, const void* right,
                           int64_t right_stride, int64_t width, const GpuMemory& memory) {
  const std::vector<Alike> targets = targets_of(groups);
  int64_t rows = 0;
  for (const Alike& alike : targets) {
    for (const GpuOuter& run : alike.front()) rows += run.rows.count() * static_cast<int64_t>(alike.size());
  }
  // What the cache holds can be read again, by more blocks.
  const int bundle_tiles = rows * width * 2 > large_bytes ? most_tiles : 1;
  const int64_t bytes = workspace_bytes(targets, width);
  Launcher launcher(stream, right, right_stride, width, bundle_tiles, bytes > 0 ? static_cast<float*>(memory(bytes)) : nullptr,
                    bytes / static_cast<int64_t>(sizeof(float)));
  for (const Alike& alike : targets) {
    bool is_first = true;
    for_each_part(chunks_of(alike.front()), [&](std::span<const RunChunk> part) {
      if (!is_first) launcher.flush();  // the next launch adds to the same gradients, in order
      launcher.add(alike, part);
      is_first = false;
    });
  }
  launcher.flush();
}

}  // namespace cotune::cuda
