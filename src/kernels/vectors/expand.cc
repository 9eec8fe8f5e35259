#include "kernels/expand.h"

#include <omp.h>

#include <vector>

#include "kernels/dropout_mask.h"
#include "kernels/row_blocks.h"
#include "kernels/shrink_plan.h"
#include "kernels/strip_product.h"

namespace cotune::kernels::COTUNE_VECTORS {
namespace {

COTUNE_VECTORS_BEGIN

/// y = residual + y + added + bias; residual and bias may be null.
template <typename T, typename Y>
void add_row(const T* added, const Y* residual, const float* bias, int64_t columns, Y* y) {
  for_lanes(columns, [&](int64_t c, auto lanes) {
    Vector sum = load(y + c, lanes);
    if (residual != nullptr) sum = load(residual + c, lanes) + sum;
    sum = sum + load(added + c, lanes);
    if (bias != nullptr) sum = sum + load(bias + c, lanes);
    store(y + c, sum, lanes);
  });
}

/// y += mask ⊙ added.
template <typename T, typename Y>
void add_masked_row(uint64_t key, uint32_t threshold, float scale, int64_t first_feature, const T* added, int64_t columns,
                    Y* y) {
  const Vector s = splat(scale);
  for_kept(key, threshold, first_feature, columns, [&](int64_t c, auto lanes, Lanes kept) {
    const Vector before = load(y + c, lanes);
    store(y + c, blend(kept, multiply_add(load(added + c, lanes), s, before), before), lanes);
  });
}

COTUNE_VECTORS_END

/// The finished strip of one group, rows [begin, begin + count) of y.
template <typename T, typename Y>
void add_strip(const ExpandGroup& group, const ExpandOptions& options, const T* added, int64_t begin,
               int64_t count, Y* y, int64_t y_stride) {
  const int64_t columns = group.b->n();
  for (int64_t row = begin; row < begin + count; ++row, added += columns) {
    Y* target = y + row * y_stride + group.column_begin;
    if (group.dropout != nullptr) {
      const uint64_t key = row_key(*group.dropout, options.example_keys[row], options.positions[row]);
      add_masked_row(key, threshold_of(*group.dropout), scale_of(*group.dropout), group.dropout->first_feature, added, columns,
                     target);
    } else {
      const Y* residual = options.residual == nullptr
                              ? nullptr
                              : static_cast<const Y*>(options.residual) + row * options.residual_stride;
      add_row(added, residual, group.bias, columns, target);
    }
  }
}

void check(const MatrixKernels& kernels, std::span<const ExpandGroup> groups, const RowRuns& runs,
           const ExpandOptions& options) {
  for (const ExpandGroup& group : groups) {
    COTUNE_CHECK(group.rows.begin >= 0 && group.rows.begin <= group.rows.end, "rows {} to {}",
                 group.rows.begin, group.rows.end);
    COTUNE_CHECK(
        group.b->dtype() == kernels.dtype && (group.b->parts() > 0) == kernels.in_parts,
        "a factor packed for other kernels");
    COTUNE_CHECK(group.dropout == nullptr || (options.residual == nullptr && group.bias == nullptr),
                 "a mask beside a residual or a bias");
  }
  COTUNE_CHECK(options.residual == nullptr || runs.count() == groups.size(),
               "groups of the same rows and a residual");
}

/// What a row of a strip costs: panels · (c + k), so that factors of unlike ranks are dealt in proportion (MuxTune §4: operations and memory
/// access). For each column a strip of h rows reads k elements of the factor, and in every row reads an element of the output and writes it:
/// k + 2h elements together, c = 2h. Operations grow with k as the factor's elements do. Which thread has a strip changes no bit.
int64_t cost_of_row(const PackedMatrix& b, const MatrixKernels& kernels) {
  return b.panel_count() * (int64_t{2} * kernels.tile_rows * kernels.tiles_per_strip + b.padded_k());
}

}  // namespace

void expand_add(Isa isa, DType dtype, void* y, int64_t y_stride, std::span<const ExpandGroup> groups,
                const ExpandOptions& options) {
  if (groups.empty()) return;
  const MatrixKernels& kernels = matrix_kernels(isa, dtype);
  const RowRuns runs = runs_of_rows(groups.size(), [&](size_t i) { return groups[i].rows; });
  check(kernels, groups, runs, options);
  std::vector<ShrinkShape> shapes;
  int64_t widest = 0;
  for (size_t run = 0; run < runs.count(); ++run) {
    ShrinkShape shape{groups[runs.order[runs.begins[run]]].rows, 0};
    for (size_t i = runs.begins[run]; i < runs.begins[run + 1]; ++i) {
      const PackedMatrix& b = *groups[runs.order[i]].b;
      shape.row_cost += cost_of_row(b, kernels);
      widest = std::max(widest, b.n());
    }
    shapes.push_back(shape);
  }
  ShrinkPlan plan;
  plan_shrink(shapes, kernels.tile_rows, kernels.tiles_per_strip, omp_get_max_threads(), plan);
  if (plan.strips.empty()) return;
  const int64_t element = bytes_of(dtype), parts = plan.parts();
  with_element(dtype, [&](auto of_dtype) {
    using T = decltype(of_dtype);
#pragma omp parallel num_threads(static_cast <int>(parts))
    {
      kernels.begin();
      char* strip_rows =
          ThreadScratch::mine().get(ThreadScratch::right, 2 * kernels.tile_rows * widest * element);
      for (int64_t part = omp_get_thread_num(); part < parts; part += omp_get_num_threads()) {
        for (int64_t i = plan.part_begins[size_t(part)]; i < plan.part_begins[size_t(part) + 1]; ++i) {
          const ShrinkStrip& strip = plan.strips[size_t(i)];
          const auto run = size_t(strip.group);
          for (size_t g = runs.begins[run]; g < runs.begins[run + 1]; ++g) {
            const ExpandGroup& group = groups[runs.order[g]];
            const LeftOperand left(group.s, group.s_stride, group.b->k(), kernels);
            multiply_strip(kernels, left, *group.b,
                           {.row = strip.row - group.rows.begin,
                            .heights = {strip.height[0], strip.height[1]},
                            .y = strip_rows,
                            .y_stride = group.b->n() * element});
            const auto* added = reinterpret_cast<const T*>(strip_rows);
            const int64_t count = strip.height[0] + strip.height[1];
            if (options.wide) {
              add_strip(group, options, added, strip.row, count, static_cast<float*>(y), y_stride);
            } else {
              add_strip(group, options, added, strip.row, count, static_cast<T*>(y), y_stride);
            }
          }
        }
      }
      kernels.end();
    }
  });
}

}  // namespace cotune::kernels::COTUNE_VECTORS
