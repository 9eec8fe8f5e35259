// to += from·Δ for deltas of few entries. One entry is a multiply-add per token; what counts is the bytes read for it.
//
// Bytes per entry and token in bf16, a weight of 4096 by 14336 with 293,000 entries, 4096 tokens:
//   from[token, row] gathered as it lies              32 (a sector of memory for 2 bytes)        38 GB
//   from transposed first, an entry reads its tokens   2 (+ 2·4096/293,000 to transpose)        2.4 GB
//   the entries' own 8 bytes, once per tile of 32     0.25                                      0.3 GB
//   to, a window of 256 columns at a time through shared memory: 2·2·14336/293,000 = 0.2        0.2 GB
// So rows are transposed into a panel first (sparse_panel.cuh): at most 64 MiB at a time, which stay in the second-level
// cache. A block keeps to one tile of 32 tokens, whose panel is 64 bytes a column: 256 KiB of 4096 columns, about the
// first-level cache, where most of the 2.4 GB are read; and its 32 warps take the columns of a window one by one as they come
// free, for entries may crowd in few columns. Transposed deltas (input gradients) are the same with entries by rows.
//
// Order of a column's sum: its entries 32 at a time, every fourth of them to a team of 8 lanes, ascending; then the four teams'
// sums. It depends on the delta alone.

#include <algorithm>
#include <vector>

#include "cuda/grouping.h"
#include "cuda/launch.cuh"
#include "cuda/method_kernels.h"
#include "cuda/sparse_panel.cuh"

namespace cotune::cuda {
namespace {

constexpr int warps = 32, threads = warps * warp_size;  // a warp for each of a tile's tokens, when they are written
constexpr int window = 256;                             // columns of the result at a time
constexpr int teams = warp_size / team_lanes, batch = 4;
constexpr int most_targets = 256, most_sites = 384;     // of a launch, which takes them as parameters (at most 32 KiB)
constexpr int64_t wanted_blocks = 264;                  // two for each processor of an H100: windows are divided until then
static_assert(warps == tile_rows && window % warp_size == 0);

/// One delta that is added to a target.
struct Site {
  const int64_t* offsets;
  const int32_t* indices;
  const float* values;
  int32_t outputs, from_column;
};
/// Columns from to_column on of some tiles' rows.
struct Target {
  int64_t row_begin;
  int32_t rows, first_tile, to_column, outputs, first_site, sites, parts, first_block;
};
struct Call {
  int32_t target_count = 0, site_count = 0;
  int64_t blocks = 0;
  Target targets[most_targets];
  Site sites[most_sites];
};
static_assert(sizeof(Call) < 28 * 1024);

/// Sums over a column's entries [begin, end) for the four tokens of this lane's place in its team, in all teams. The whole
/// warp calls.
template <typename T>
__device__ inline void sum_entries(const Site& site, const T* panel, int64_t begin, int64_t end,
                                   float (&sums)[lane_tokens]) {
  const int lane = static_cast<int>(threadIdx.x) % warp_size, team = lane / team_lanes;
  const T* tokens = panel + static_cast<int64_t>(site.from_column) * tile_rows + lane % team_lanes * lane_tokens;
#pragma unroll
  for (int j = 0; j < lane_tokens; ++j) sums[j] = 0;
  for (int64_t first = begin; first < end; first += warp_size) {
    const int here = static_cast<int>(min(end - first, static_cast<int64_t>(warp_size)));
    int index = 0;
    float value = 0;
    if (lane < here) {
      index = site.indices[first + lane];
      value = site.values[first + lane];
    }
    for (int k = 0; k < here; k += teams * batch) {
      float read[batch][lane_tokens], factors[batch];
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        const int entry = k + i * teams + team;
        const int row = __shfl_sync(0xFFFFFFFFu, index, entry);
        factors[i] = __shfl_sync(0xFFFFFFFFu, value, entry);
        if (entry < here) load_tokens(tokens + static_cast<int64_t>(row) * tile_rows, read[i]);
      }
#pragma unroll
      for (int i = 0; i < batch; ++i) {
        if (k + i * teams + team >= here) continue;
#pragma unroll
        for (int j = 0; j < lane_tokens; ++j) sums[j] = __fmaf_rn(read[i][j], factors[i], sums[j]);
      }
    }
  }
#pragma unroll
  for (int distance = team_lanes; distance < warp_size; distance *= 2) {
#pragma unroll
    for (int j = 0; j < lane_tokens; ++j) sums[j] = __fadd_rn(sums[j], __shfl_xor_sync(0xFFFFFFFFu, sums[j], distance));
  }
}

template <typename T>
__global__ void __launch_bounds__(threads)
    products_kernel(const __grid_constant__ Call call, const T* __restrict__ panel, int64_t width, T* to,
                    int64_t to_stride) {
  const int block = static_cast<int>(blockIdx.x);
  const Target& target = call.targets[entry_of_block(call.targets, call.target_count)];
  const int tile = (block - target.first_block) / target.parts, part = (block - target.first_block) % target.parts;
  const T* tile_panel = panel + (target.first_tile + tile) * width * tile_rows;
  const int warp = static_cast<int>(threadIdx.x) / warp_size, lane = static_cast<int>(threadIdx.x) % warp_size;
  const int row = tile * tile_rows + warp;

  __shared__ float totals[window][tile_rows + 1];
  __shared__ int touched[window];
  __shared__ int next;
  for (int begin = part * window; begin < target.outputs; begin += target.parts * window) {
    const int columns = min(window, target.outputs - begin);
    for (int i = static_cast<int>(threadIdx.x); i < window * tile_rows; i += threads) {
      totals[i / tile_rows][i % tile_rows] = 0;
      if (i < window) touched[i] = 0;
    }
    for (int s = 0; s < target.sites; ++s) {
      const Site& site = call.sites[target.first_site + s];
      if (threadIdx.x == 0) next = 0;
      __syncthreads();
      while (true) {
        int column = 0;
        if (lane == 0) column = atomicAdd(&next, 1);
        column = __shfl_sync(0xFFFFFFFFu, column, 0);
        if (column >= columns || begin + column >= site.outputs) break;
        const int64_t first = site.offsets[begin + column], last = site.offsets[begin + column + 1];
        if (first == last) continue;
        float sums[lane_tokens];
        sum_entries(site, tile_panel, first, last, sums);
        if (lane < team_lanes) {
#pragma unroll
          for (int j = 0; j < lane_tokens; ++j) {
            float& total = totals[column][lane * lane_tokens + j];
            total = __fadd_rn(total, sums[j]);
          }
        }
        if (lane == 0) touched[column] = 1;
      }
      __syncthreads();
    }
    if (row < target.rows) {
      T* values = to + (target.row_begin + row) * to_stride + target.to_column + begin;
      for (int column = lane; column < columns; column += warp_size) {
        if (touched[column] != 0) values[column] = rounded<T>(__fadd_rn(widened(values[column]), totals[column][warp]));
      }
    }
    __syncthreads();
  }
}

constexpr int gather_threads = 256, most_gathers = 384;

/// values[i] = from[places[i]].
struct Gather {
  const float* from;
  const int32_t* places;
  float* values;
  int64_t count;
  int32_t first_block;
};
struct GatherCall {
  int32_t count = 0;
  int64_t blocks = 0;
  Gather gathers[most_gathers];
};
static_assert(sizeof(GatherCall) < 28 * 1024);

__global__ void __launch_bounds__(gather_threads) gather_kernel(const __grid_constant__ GatherCall call) {
  const int block = static_cast<int>(blockIdx.x);
  const Gather& gather = call.gathers[entry_of_block(call.gathers, call.count)];
  const int64_t i = static_cast<int64_t>(block - gather.first_block) * gather_threads + threadIdx.x;
  if (i < gather.count) gather.values[i] = gather.from[gather.places[i]];
}

void gather_values(cudaStream_t stream, std::span<const GpuSparseProduct> groups) {
  GatherCall call;
  const auto flush = [&] {
    if (call.blocks > 0) launch("sparse_products", gather_kernel, call.blocks, gather_threads, stream, call);
    call.count = 0;
    call.blocks = 0;
  };
  for (const GpuSparseProduct& group : groups) {
    if (group.places == nullptr || group.entries == 0) continue;
    const int64_t blocks = divide_up(group.entries, gather_threads);
    if (call.count == most_gathers || call.blocks + blocks > INT32_MAX) flush();
    call.gathers[call.count++] = {group.values, group.places, group.placed, group.entries, static_cast<int32_t>(call.blocks)};
    call.blocks += blocks;
  }
  flush();
}

/// The groups of the same columns of the same rows, in the order given.
using Columns = std::vector<const GpuSparseProduct*>;
/// All of the same rows, which share a panel.
using Bundle = std::vector<Columns>;

std::vector<Bundle> bundles_of(std::span<const GpuSparseProduct> groups) {
  Columns all;
  for (const GpuSparseProduct& group : groups) {
    if (group.rows.count() > 0 && group.entries > 0) all.push_back(&group);
  }
  std::vector<Bundle> bundles;
  for (Columns& of_rows : kinds_of(std::move(all), [](const auto* a, const auto* b) { return same_rows(a->rows, b->rows); })) {
    bundles.push_back(kinds_of(std::move(of_rows), [](const auto* a, const auto* b) { return a->to_column == b->to_column; }));
  }
  return bundles;
}

/// Fills panels and calls, and launches them when they are full.
template <typename T>
class Launcher {
 public:
  Launcher(cudaStream_t stream, GpuType type, const GpuSparseOperands& operands, int64_t panel_tiles)
      : stream_(stream), type_(type), operands_(operands), panel_tiles_(panel_tiles) {
    panel_.columns = static_cast<int32_t>(operands.from_columns.count());
  }

  void add(const Bundle& bundle) {
    size_t sites = 0;
    for (const Columns& columns : bundle) sites += columns.size();
    if (sites > most_sites || bundle.size() > most_targets) {
      refuse("sparse_products", std::to_string(sites) + " deltas of the same rows");
    }
    const GpuRows rows = bundle.front().front()->rows;
    for (int64_t row = rows.begin; row < rows.end;) {
      const bool full = panel_.tiles == panel_tiles_ || panel_.piece_count == most_pieces ||
                        call_.target_count + bundle.size() > most_targets || call_.site_count + sites > most_sites;
      if (full) flush();
      const int64_t tiles = std::min(divide_up(rows.end - row, tile_rows), panel_tiles_ - panel_.tiles);
      add(bundle, {row, std::min(rows.end, row + tiles * tile_rows)}, tiles);
      row += tiles * tile_rows;
    }
  }

  void flush() {
    if (panel_.tiles > 0) {
      const PanelSource source{static_cast<const T*>(operands_.from) + operands_.from_columns.begin, operands_.from_stride};
      auto* panel = static_cast<T*>(operands_.panel);
      fill_panel(stream_, type_, "sparse_products", panel_, source, panel);
      launch("sparse_products", products_kernel<T>, call_.blocks, threads, stream_, call_, static_cast<const T*>(panel),
             static_cast<int64_t>(panel_.columns), static_cast<T*>(operands_.to), operands_.to_stride);
    }
    panel_.piece_count = panel_.tiles = call_.target_count = call_.site_count = 0;
    call_.blocks = 0;
  }

 private:
  void add(const Bundle& bundle, GpuRows rows, int64_t tiles) {
    panel_.pieces[panel_.piece_count++] = {rows.begin, static_cast<int32_t>(rows.count()), panel_.tiles};
    for (const Columns& columns : bundle) {
      const int32_t first_site = call_.site_count;
      int32_t outputs = 0;
      for (const GpuSparseProduct* group : columns) {
        const int count = column_count("sparse_products", group->outputs);
        outputs = std::max(outputs, count);
        call_.sites[call_.site_count++] = {
            group->offsets, group->indices, group->places != nullptr ? group->placed : group->values, count,
            static_cast<int32_t>(group->from_column - operands_.from_columns.begin)};
      }
      const auto parts = std::min(divide_up(outputs, window), divide_up(wanted_blocks, tiles));
      call_.targets[call_.target_count++] = {rows.begin,
                                             static_cast<int32_t>(rows.count()),
                                             panel_.tiles,
                                             column_count("sparse_products", columns.front()->to_column),
                                             outputs,
                                             first_site,
                                             static_cast<int32_t>(columns.size()),
                                             static_cast<int32_t>(parts),
                                             static_cast<int32_t>(call_.blocks)};
      call_.blocks += tiles * parts;
    }
    panel_.tiles += static_cast<int32_t>(tiles);
  }

  cudaStream_t stream_;
  GpuType type_;
  const GpuSparseOperands& operands_;
  int64_t panel_tiles_;
  Panel panel_;
  Call call_;
};

}  // namespace

void launch_sparse_products(cudaStream_t stream, GpuType type, std::span<const GpuSparseProduct> groups,
                            const GpuSparseOperands& operands) {
  gather_values(stream, groups);
  with_type(type, [&](auto element) {
    using T = decltype(element);
    const int64_t columns = column_count("sparse_products", operands.from_columns.count());
    const int64_t tile_bytes = std::max<int64_t>(1, columns) * tile_rows * static_cast<int64_t>(sizeof(T));
    const int64_t tiles = std::min<int64_t>(operands.panel_bytes / tile_bytes, 1 << 20);
    if (tiles == 0) refuse("sparse_products", "a panel of " + std::to_string(operands.panel_bytes) + " bytes");
    Launcher<T> launcher(stream, type, operands, tiles);
    for (const Bundle& bundle : bundles_of(groups)) launcher.add(bundle);
    launcher.flush();
  });
}

}  // namespace cotune::cuda
