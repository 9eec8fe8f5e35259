#include "cuda/dropout_mask.cuh"
#include "cuda/row_kernels.h"
#include "cuda/row_parts.cuh"

namespace cotune::cuda {
namespace {

constexpr int most_threads = 256;
constexpr int most_groups = 64;

/// The groups of one launch, below one another: group g has the rows [first_row[g], first_row[g + 1]) of the launch.
struct GroupTable {
  int count = 0;
  int64_t first_row[most_groups] = {};
  int64_t source[most_groups] = {};  ///< of the group's first row in x
  int64_t target[most_groups] = {};  ///< and in y
  uint64_t key[most_groups] = {};
  uint32_t threshold[most_groups] = {};
  float scale[most_groups] = {};
};
static_assert(sizeof(GroupTable) <= 3072);  // kernels take 4 KiB of parameters

template <typename T, bool whole>
__global__ void __launch_bounds__(most_threads)
    dropout_kernel(const __grid_constant__ GroupTable groups, GpuMaskRows mask_rows, const T* x, int64_t x_stride,
                   int columns, unsigned blocks_per_row, T* y) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t first =
      (static_cast<int64_t>(blockIdx.x % blocks_per_row) * blockDim.x + threadIdx.x) * part_size<T>;
  if (first >= columns) return;
  const int column = static_cast<int>(first);
  int group = 0;
  while (group + 1 < groups.count && row >= groups.first_row[group + 1]) ++group;
  const int64_t local = row - groups.first_row[group], source = groups.source[group] + local;
  const uint64_t key = mask_row_key(groups.key[group], mask_rows.example_keys[source], mask_rows.positions[source]);
  const uint32_t threshold = groups.threshold[group];
  const float scale = groups.scale[group];
  float values[part_size<T>];
  load_part<whole>(x + source * x_stride, column, columns, values);
#pragma unroll
  for (int i = 0; i < part_size<T>; ++i) {
    values[i] = mask_keeps(key, threshold, static_cast<uint32_t>(column + i)) ? __fmul_rn(values[i], scale) : 0.0f;
  }
  store_part<whole>(y + (groups.target[group] + local) * columns, column, columns, values);
}

}  // namespace

void launch_dropout(cudaStream_t stream, GpuType type, std::span<const GpuDropoutGroup> groups, GpuMaskRows mask_rows,
                    const void* x, int64_t x_stride, int64_t columns, void* y) {
  if (columns == 0) return;
  const int count = column_count("dropout", columns);
  for (size_t begin = 0; begin < groups.size();) {
    GroupTable table;
    int64_t rows = 0;
    for (; begin < groups.size() && table.count < most_groups; ++begin) {
      const GpuDropoutGroup& group = groups[begin];
      if (group.rows.count() == 0) continue;
      const int g = table.count++;
      table.first_row[g] = rows;
      table.source[g] = group.rows.begin;
      table.target[g] = group.target;
      table.key[g] = group.mask.key;
      table.threshold[g] = mask_threshold(group.mask.probability);
      table.scale[g] = mask_scale(group.mask.probability);
      rows += group.rows.count();
    }
    if (rows == 0) continue;
    with_type(type, [&](auto element) {
      using T = decltype(element);
      const PartGrid grid(divide_up(columns, part_size<T>), most_threads);
      const bool all_aligned = aligned(x) && aligned(y);
      with_flag(whole_parts<T>(columns) && whole_parts<T>(x_stride) && all_aligned, [&](auto whole) {
        launch("dropout", dropout_kernel<T, whole.value>, rows * grid.blocks_per_row, grid.threads, stream, table,
               mask_rows, static_cast<const T*>(x), x_stride, count, grid.blocks_per_row, static_cast<T*>(y));
      });
    });
  }
}

}  // namespace cotune::cuda
