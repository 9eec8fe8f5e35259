// gradient[e] += Σ over an atom's rows of x[row, r(e)]·dy[row, c(e)] for every entry e.
//
// Bytes per entry and token in bf16: x and dy as they lie 64 (a sector each), of panels (sparse_panel.cuh) 2 for x, from the
// second-level cache, and as much for dy, from the first-level cache mostly, for the entries of a warp follow one another in
// their columns. 293,000 entries and 4096 tokens: 77 GB against 2.4 GB and as much nearby. A sum stays in registers until its
// slab of 512 rows is done: written per tile it would be 4 bytes for every 64 read. Both panels together take at most 64 MiB.
//
// A warp has 32 entries, whatever their columns, so that crowded columns do not wait; a team of 8 lanes has 8 of them, a lane
// 4 tokens of each tile. Order of a sum: tiles ascending in a lane, then the lanes by halves, then slabs and atoms in order.

#include <algorithm>
#include <vector>

#include "cuda/grouping.h"
#include "cuda/launch.cuh"
#include "cuda/method_kernels.h"
#include "cuda/sparse_panel.cuh"

namespace cotune::cuda {
namespace {

constexpr int threads = 256;
constexpr int team_entries = 8;
constexpr int slab_tiles = static_cast<int>(gpu_sparse_slab / gpu_sparse_tile);
constexpr int most_sites = 384;  // of a launch, which takes them as parameters (at most 32 KiB)
static_assert(team_entries == team_lanes, "a lane ends up with the sum of one entry");

/// One gradient, with the slabs that are added to it: consecutive pieces of the panels.
struct Site {
  const int64_t* offsets;
  const int32_t* indices;
  float* gradient;
  int64_t entries;
  int32_t outputs, dy_column, first_slab, slabs, first_block;
};
struct Slab {
  int32_t first_tile, tiles;
};
struct Call {
  int32_t site_count = 0;
  int64_t blocks = 0;
  Site sites[most_sites];
  Slab slabs[most_pieces];
};
static_assert(sizeof(Call) < 28 * 1024);

/// The column that entry e is in: offsets[column] ≤ e < offsets[column + 1].
__device__ inline int column_of(const int64_t* offsets, int columns, int64_t e) {
  int low = 0, high = columns;  // offsets[low] ≤ e < offsets[high]
  while (high - low > 1) {
    const int middle = low + (high - low) / 2;
    if (offsets[middle] <= e) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

template <typename T>
__global__ void __launch_bounds__(threads)
    value_gradients_kernel(const __grid_constant__ Call call, const T* __restrict__ x, int64_t x_width,
                           const T* __restrict__ dy, int64_t dy_width) {
  const int block = static_cast<int>(blockIdx.x);
  const Site& site = call.sites[entry_of_block(call.sites, call.site_count)];
  const int64_t entry = static_cast<int64_t>(block - site.first_block) * threads + threadIdx.x;
  const bool there = entry < site.entries;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int row = there ? site.indices[entry] : 0, column = there ? column_of(site.offsets, site.outputs, entry) : 0;

  // The places of the team's entries in a tile. Beyond the last entry the first row and column are read for nothing.
  const T *x_tokens[team_entries], *dy_tokens[team_entries];
#pragma unroll
  for (int i = 0; i < team_entries; ++i) {
    const int of_entry = lane / team_lanes * team_entries + i, token = lane % team_lanes * lane_tokens;
    x_tokens[i] = x + static_cast<int64_t>(__shfl_sync(0xFFFFFFFFu, row, of_entry)) * tile_rows + token;
    dy_tokens[i] =
        dy + static_cast<int64_t>(site.dy_column + __shfl_sync(0xFFFFFFFFu, column, of_entry)) * tile_rows + token;
  }
  float gradient = there ? site.gradient[entry] : 0.0f;
  for (int s = 0; s < site.slabs; ++s) {
    const Slab& slab = call.slabs[site.first_slab + s];
    float sums[team_entries] = {};
    for (int tile = slab.first_tile; tile < slab.first_tile + slab.tiles; ++tile) {
      const int64_t x_tile = tile * x_width * tile_rows, dy_tile = tile * dy_width * tile_rows;
#pragma unroll
      for (int i = 0; i < team_entries; ++i) {
        float left[lane_tokens], right[lane_tokens];
        load_tokens(x_tokens[i] + x_tile, left);
        load_tokens(dy_tokens[i] + dy_tile, right);
#pragma unroll
        for (int j = 0; j < lane_tokens; ++j) sums[i] = __fmaf_rn(left[j], right[j], sums[i]);
      }
    }
    // Lanes exchange halves of what they have, so that lane l of the team has all of entry l.
#pragma unroll
    for (int half = team_entries / 2; half > 0; half /= 2) {
      const bool upper = (lane & half) != 0;
#pragma unroll
      for (int i = 0; i < half; ++i) {
        const float mine = upper ? sums[i + half] : sums[i], others = upper ? sums[i] : sums[i + half];
        sums[i] = __fadd_rn(mine, __shfl_xor_sync(0xFFFFFFFFu, others, half));
      }
    }
    gradient = __fadd_rn(gradient, sums[0]);
  }
  if (there) site.gradient[entry] = gradient;
}

/// The atoms of one gradient, in the order given.
using Target = std::vector<const GpuSparseGradient*>;
/// Gradients of the same atoms, which share the panels.
using Bundle = std::vector<Target>;

bool same_atoms(const Target& a, const Target& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const GpuSparseGradient* first, const GpuSparseGradient* second) {
    return same_rows(first->rows, second->rows);
  });
}

std::vector<Bundle> bundles_of(std::span<const GpuSparseGradient> groups) {
  Target atoms;
  for (const GpuSparseGradient& group : groups) {
    if (group.rows.count() > 0 && group.entries > 0) atoms.push_back(&group);
  }
  const auto same_gradient = [](const GpuSparseGradient* a, const GpuSparseGradient* b) { return a->gradient == b->gradient; };
  return kinds_of(kinds_of(std::move(atoms), same_gradient), same_atoms);
}

/// Fills panels and calls, and launches them when they are full.
template <typename T>
class Launcher {
 public:
  Launcher(cudaStream_t stream, GpuType type, const GpuSparseGradientOperands& operands, int64_t panel_tiles)
      : stream_(stream), type_(type), operands_(operands), panel_tiles_(panel_tiles) {
    panel_.columns = column_count("sparse_value_gradients", operands.x_columns);
    dy_columns_ = column_count("sparse_value_gradients", operands.dy_columns.count());
  }

  void add(const Bundle& bundle) {
    if (bundle.size() > most_sites) {
      refuse("sparse_value_gradients", std::to_string(bundle.size()) + " gradients of the same rows");
    }
    bool open = false;  // the bundle's sites are the last of this call
    for (const GpuSparseGradient* atom : bundle.front()) {
      for (int64_t row = atom->rows.begin; row < atom->rows.end; row += gpu_sparse_slab) {
        const GpuRows rows{row, std::min(atom->rows.end, row + gpu_sparse_slab)};
        const auto tiles = static_cast<int32_t>(divide_up(rows.count(), tile_rows));
        const bool full = panel_.tiles + tiles > panel_tiles_ || panel_.piece_count == most_pieces;
        if (full || (!open && call_.site_count + bundle.size() > most_sites)) {
          flush();
          open = false;
        }
        if (!open) add_sites(bundle);
        open = true;
        call_.slabs[panel_.piece_count] = {panel_.tiles, tiles};
        panel_.pieces[panel_.piece_count++] = {rows.begin, static_cast<int32_t>(rows.count()), panel_.tiles};
        panel_.tiles += tiles;
        for (size_t i = 0; i < bundle.size(); ++i) ++call_.sites[call_.site_count - 1 - static_cast<int32_t>(i)].slabs;
      }
    }
  }

  void flush() {
    if (panel_.tiles > 0) {
      auto* x = static_cast<T*>(operands_.panel);
      T* dy = x + panel_tiles_ * panel_.columns * tile_rows;
      Panel dy_panel = panel_;
      dy_panel.columns = dy_columns_;
      fill_panel(stream_, type_, "sparse_value_gradients", panel_, {operands_.x, operands_.x_stride}, x);
      fill_panel(stream_, type_, "sparse_value_gradients", dy_panel,
                 {static_cast<const T*>(operands_.dy) + operands_.dy_columns.begin, operands_.dy_stride}, dy);
      launch("sparse_value_gradients", value_gradients_kernel<T>, call_.blocks, threads, stream_, call_,
             static_cast<const T*>(x), static_cast<int64_t>(panel_.columns), static_cast<const T*>(dy),
             static_cast<int64_t>(dy_columns_));
    }
    panel_.piece_count = panel_.tiles = call_.site_count = 0;
    call_.blocks = 0;
  }

 private:
  void add_sites(const Bundle& bundle) {
    for (const Target& target : bundle) {
      const GpuSparseGradient& of = *target.front();
      call_.sites[call_.site_count++] = {of.offsets,
                                         of.indices,
                                         of.gradient,
                                         of.entries,
                                         column_count("sparse_value_gradients", of.outputs),
                                         static_cast<int32_t>(of.dy_column - operands_.dy_columns.begin),
                                         panel_.piece_count,
                                         0,
                                         static_cast<int32_t>(call_.blocks)};
      call_.blocks += divide_up(of.entries, threads);
    }
  }

  cudaStream_t stream_;
  GpuType type_;
  const GpuSparseGradientOperands& operands_;
  int64_t panel_tiles_;
  int32_t dy_columns_ = 0;
  Panel panel_;  ///< of x; dy's has the same tiles
  Call call_;
};

}  // namespace

void launch_sparse_value_gradients(cudaStream_t stream, GpuType type, std::span<const GpuSparseGradient> groups,
                                   const GpuSparseGradientOperands& operands) {
  with_type(type, [&](auto element) {
    using T = decltype(element);
    const int64_t tile_bytes = (operands.x_columns + operands.dy_columns.count()) * tile_rows * static_cast<int64_t>(sizeof(T));
    const int64_t tiles = std::min<int64_t>(operands.panel_bytes / std::max<int64_t>(1, tile_bytes), 1 << 20);
    if (tiles < slab_tiles) {
      refuse("sparse_value_gradients", "panels of " + std::to_string(operands.panel_bytes) + " bytes");
    }
    Launcher<T> launcher(stream, type, operands, tiles);
    for (const Bundle& bundle : bundles_of(groups)) launcher.add(bundle);
    launcher.flush();
  });
}

}  // namespace cotune::cuda
