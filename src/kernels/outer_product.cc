#include "kernels/outer_product.h"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/matrix_blocks.h"
#include "kernels/matrix_kernels.h"
#include "kernels/outer_plan.h"

namespace cotune::kernels {
namespace {

// Arranged rows of right are used at once from the first-level cache where a panel of them leaves room for
// the rows they come from; else as many panels as suit the second level.
constexpr int64_t near_panel_bytes = 16 << 10;
constexpr int64_t near_block_bytes = 12 << 10;
constexpr int64_t far_block_bytes = 256 << 10;
constexpr int64_t panel_columns = PackedMatrix::panel_columns;
constexpr int64_t line_bytes = 64;

struct Call {
  const MatrixKernels& kernels;
  const char* right;
  int64_t right_stride;  // bytes
  int64_t columns;
  std::span<const OuterGroup> groups;
  const std::vector<int64_t>& gradient_of;  // of each group, counted from 0
};

/// gradient += scale · leftᵀ·right for panels of `right` columns that lie arranged in `panels`.
void add_group(const Call& call, const OuterGroup& group, const char* left, int64_t left_stride,
               int64_t depth, const char* panels, int64_t column, int64_t panel_count) {
  const MatrixKernels& kernels = call.kernels;
  const int64_t element = bytes_of(kernels.dtype);
  const int64_t tiles = tile_count(group.left_columns, kernels.tile_rows);
  Strip strip;
  strip.a_stride = left_stride;
  strip.panel_bytes = depth * panel_columns * element;
  strip.panel_count = panel_count;
  strip.columns = call.columns - column;
  strip.accumulate = true;
  strip.scale = group.scale;
  strip.y_stride = group.gradient_stride * int64_t{sizeof(float)};
  if (depth > kernels.k_block) {
    strip.partial = reinterpret_cast<float*>(ThreadScratch::mine().get(
        ThreadScratch::partial,
        panel_count * 2 * kernels.tile_rows * panel_columns * int64_t{sizeof(float)}));
  }
  for (int64_t t = 0; t < tiles; t += kernels.tiles_per_strip) {
    strip.tile_count = static_cast<int>(std::min<int64_t>(kernels.tiles_per_strip, tiles - t));
    strip.tiles[1] = {};
    for (int64_t k = 0; k < depth; k += strip.k) {
      strip.k = std::min(kernels.k_block, depth - k);
      strip.first = k == 0;
      strip.last = k + strip.k == depth;
      strip.b = panels + k * panel_columns * element;
      for (int side = 0; side < strip.tile_count; ++side) {
        const int64_t row = tile_begin(group.left_columns, tiles, t + side);
        Tile& tile = strip.tiles[side];
        tile.height = static_cast<int>(tile_begin(group.left_columns, tiles, t + side + 1) - row);
        tile.a = left + row * left_stride + k * kernels.left_element_bytes;
        tile.y = reinterpret_cast<char*>(group.gradient + row * group.gradient_stride + column);
      }
      kernels.multiply(strip);
    }
  }
}

/// Groups [begin, end) have the same rows: arranges those rows of right once and adds every group of the share.
void add_run(const Call& call, size_t begin, size_t end, const OuterShare& mine) {
  const MatrixKernels& kernels = call.kernels;
  const int64_t element = bytes_of(kernels.dtype);
  const RowRange rows = call.groups[begin].rows;
  const int64_t depth = padded_depth(rows.count(), kernels.depth_unit);
  const int64_t left_stride = ((depth * kernels.left_element_bytes + line_bytes - 1) / line_bytes | 1) * line_bytes;
  const RowRange panels = mine.panels;
  const auto is_mine = [&](size_t g) {
    return call.gradient_of[g] >= mine.gradients.begin && call.gradient_of[g] < mine.gradients.end;
  };
  int64_t left_rows = 0;
  for (size_t g = begin; g < end; ++g) left_rows += is_mine(g) ? call.groups[g].left_columns : 0;
  if (left_rows == 0 || depth == 0) return;
  char* left = ThreadScratch::mine().get(ThreadScratch::left, left_rows * left_stride);
  char* target = left;
  for (size_t g = begin; g < end; ++g) {
    if (!is_mine(g)) continue;
    const OuterGroup& group = call.groups[g];
    kernels.transpose_left(static_cast<const char*>(group.left), group.left_stride * element, rows.count(),
                           depth, group.left_columns, target, left_stride);
    target += group.left_columns * left_stride;
  }
  const int64_t panel_bytes = depth * panel_columns * element;
  const int64_t block = std::clamp<int64_t>(
      (panel_bytes <= near_panel_bytes ? near_block_bytes : far_block_bytes) / panel_bytes, 1,
      panels.count());
  char* arranged = ThreadScratch::mine().get(ThreadScratch::right, block * panel_bytes);
  for (int64_t first = panels.begin; first < panels.end; first += block) {
    const int64_t count = std::min(block, panels.end - first);
    const int64_t column = first * panel_columns;
    kernels.pack_right(call.right + rows.begin * call.right_stride + column * element, call.right_stride,
                       rows.count(), depth, std::min(count * panel_columns, call.columns - column), arranged);
    const char* from = left;
    for (size_t g = begin; g < end; ++g) {
      if (!is_mine(g)) continue;
      add_group(call, call.groups[g], from, left_stride, depth, arranged, column, count);
      from += call.groups[g].left_columns * left_stride;
    }
  }
}

/// Numbers the gradients in the order of their first groups, and sums what each costs: rows · columns of left.
void number_gradients(std::span<const OuterGroup> groups, std::vector<int64_t>& gradient_of, std::vector<int64_t>& costs) {
  gradient_of.clear();
  costs.clear();
  for (size_t g = 0; g < groups.size(); ++g) {
    size_t same = 0;
    while (groups[same].gradient != groups[g].gradient) ++same;
    if (same == g) costs.push_back(0);
    gradient_of.push_back(same < g ? gradient_of[same] : static_cast<int64_t>(costs.size()) - 1);
    costs[static_cast<size_t>(gradient_of.back())] += groups[g].rows.count() * groups[g].left_columns;
  }
}

}  // namespace

void outer_products(Isa isa, DType dtype, const void* right, int64_t right_stride, int64_t columns,
                    std::span<const OuterGroup> groups) {
  const MatrixKernels& kernels = narrow_matrix_kernels(isa, dtype);
  for (const OuterGroup& group : groups) {
    COTUNE_CHECK(group.rows.begin >= 0 && group.rows.begin <= group.rows.end, "rows {} to {}",
                 group.rows.begin, group.rows.end);
    COTUNE_CHECK(group.left_columns >= 0 && group.left_columns <= 512, "a left operand of {} columns",
                 group.left_columns);
  }
  if (groups.empty() || columns == 0) return;
  const int64_t panels = (columns + panel_columns - 1) / panel_columns;
  struct Planned {
    std::vector<int64_t> gradient_of, costs;
    OuterPlan plan;
  };
  thread_local Planned thread_planned;
  Planned& planned = thread_planned;
  number_gradients(groups, planned.gradient_of, planned.costs);
  plan_outer(planned.costs, panels, omp_get_max_threads(), planned.plan);
  const OuterPlan& plan = planned.plan;
  const Call call{kernels, static_cast<const char*>(right), right_stride * bytes_of(dtype), columns, groups,
                  planned.gradient_of};
  const int64_t parts = plan.parts();
  if (parts == 0) return;
#pragma omp parallel num_threads(static_cast <int>(parts))
  {
    kernels.begin();
    for (int64_t part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) {
      for (int64_t i = plan.part_begins[size_t(part)]; i < plan.part_begins[size_t(part) + 1]; ++i) {
        for (size_t begin = 0, end = 0; begin < groups.size(); begin = end) {
          while (end < groups.size() && groups[end].rows == groups[begin].rows) ++end;
          add_run(call, begin, end, plan.shares[size_t(i)]);
        }
      }
    }
    kernels.end();
  }
}

}  // namespace cotune::kernels
