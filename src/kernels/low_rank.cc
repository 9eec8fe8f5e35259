#include "kernels/low_rank.h"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "kernels/matrix_blocks.h"
#include "kernels/matrix_kernels.h"
#include "kernels/shrink_plan.h"
#include "kernels/strip_product.h"

namespace cotune::kernels {

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
        const ShrinkGroup& group = groups[static_cast<size_t>(strip.group)];
        const int64_t stride = group.s_stride * bytes_of(kernels.dtype);
        multiply_strip(kernels, left, *group.a,
                       {.row = strip.row,
                        .heights = {strip.height[0], strip.height[1]},
                        .scale = group.scale,
                        .zero_tail = true,
                        .y = static_cast<char*>(group.s) + (strip.row - group.rows.begin) * stride,
                        .y_stride = stride});
      }
    }
    kernels.end();
  }
}

}  // namespace cotune::kernels
