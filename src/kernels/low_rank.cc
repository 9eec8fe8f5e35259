#include "kernels/low_rank.h"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/matrix_blocks.h"
#include "kernels/matrix_kernels.h"
#include "kernels/shrink_plan.h"

namespace cotune::kernels {
namespace {

void multiply_strip(const MatrixKernels& kernels, const ShrinkGroup& group, const LeftOperand& left,
                    const ShrinkStrip& rows) {
  const PackedMatrix& a = *group.a;
  const int64_t element = bytes_of(kernels.dtype);
  const int64_t depth = a.padded_k();
  const int64_t partial_bytes =
      a.panel_count() * 2 * kernels.tile_rows * PackedMatrix::panel_columns * int64_t{sizeof(float)};
  ThreadScratch& scratch = ThreadScratch::mine();
  Strip strip;
  strip.tile_count = rows.height[1] > 0 ? 2 : 1;
  strip.a_stride = left.stride();
  strip.panel_bytes = a.panel_bytes();
  strip.panel_count = a.panel_count();
  strip.columns = a.n();
  strip.zero_tail = true;
  strip.scale = group.scale;
  strip.y_stride = group.s_stride * element;
  const char* x = left.in_place(rows.row);
  if (left.copies()) {
    const int64_t count = rows.height[0] + rows.height[1];
    char* copy = scratch.get(ThreadScratch::left, left.copy_bytes(count));
    for (int64_t i = 0; i < count; ++i) left.copy_row(rows.row + i, copy + i * left.stride());
    x = copy;
  }
  if (depth > kernels.k_block)
    strip.partial = reinterpret_cast<float*>(scratch.get(ThreadScratch::partial, partial_bytes));
  char* s = static_cast<char*>(group.s) + (rows.row - group.rows.begin) * strip.y_stride;
  for (int side = 0; side < strip.tile_count; ++side) {
    Tile& tile = strip.tiles[side];
    tile.height = rows.height[side];
    tile.y = s + side * rows.height[0] * strip.y_stride;
  }
  int64_t k = 0;
  do {
    strip.k = std::min(kernels.k_block, depth - k);
    strip.first = k == 0;
    strip.last = k + strip.k == depth;
    strip.b = static_cast<const char*>(a.panel(0)) + k * PackedMatrix::panel_columns * element;
    for (int side = 0; side < strip.tile_count; ++side) {
      strip.tiles[side].a = x + side * rows.height[0] * left.stride() + k * element;
    }
    kernels.multiply(strip);
    k += strip.k;
  } while (k < depth);
}

}  // namespace

void shrink(Isa isa, const void* x, int64_t x_stride, std::span<const ShrinkGroup> groups) {
  if (groups.empty()) return;
  const PackedMatrix& first = *groups.front().a;
  for (const ShrinkGroup& group : groups) {
    COTUNE_CHECK(group.a->k() == first.k() && group.a->dtype() == first.dtype() && group.a->parts() == 0,
                 "factors of one call differ in depth or dtype, or are in parts");
    COTUNE_CHECK(group.rows.begin >= 0 && group.rows.begin <= group.rows.end, "rows {} to {}",
                 group.rows.begin, group.rows.end);
    COTUNE_CHECK(group.s_stride >= group.a->padded_n() || group.rows.count() <= 1,
                 "stride {} of s, {} columns", group.s_stride, group.a->padded_n());
  }
  const MatrixKernels& kernels = narrow_matrix_kernels(isa, first.dtype());
  thread_local std::vector<ShrinkShape> thread_shapes;
  thread_local ShrinkPlan thread_plan;
  thread_shapes.clear();
  for (const ShrinkGroup& group : groups) {
    thread_shapes.push_back({group.rows, group.a->n() == 0 ? 0 : group.a->panel_count()});
  }
  plan_shrink(thread_shapes, kernels.tile_rows, kernels.tiles_per_strip, omp_get_max_threads(), thread_plan);
  if (thread_plan.strips.empty()) return;
  const LeftOperand left(x, x_stride, first.k(), kernels);
  const ShrinkPlan& plan = thread_plan;
  const int64_t parts = plan.parts();
#pragma omp parallel num_threads(static_cast <int>(parts))
  {
    kernels.begin();
    for (int64_t part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) {
      for (int64_t i = plan.part_begins[static_cast<size_t>(part)]; i < plan.part_begins[static_cast<size_t>(part) + 1];
           ++i) {
        const ShrinkStrip& strip = plan.strips[static_cast<size_t>(i)];
        multiply_strip(kernels, groups[static_cast<size_t>(strip.group)], left, strip);
      }
    }
    kernels.end();
  }
}

}  // namespace cotune::kernels
