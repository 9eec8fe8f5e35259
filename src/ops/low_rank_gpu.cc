#include "ops/low_rank_gpu.h"

#include <algorithm>
#include <set>

#include "kernels/dropout.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"
#include "ops/memory.h"

namespace cotune {
namespace {

constexpr int64_t row_multiple = 8;  // elements of bf16 in 16 bytes

GpuKernels* kernels_for(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? gpu_kernels_for(tensor) : nullptr;
}

bool is_aligned(const at::Tensor& tensor) { return reinterpret_cast<uintptr_t>(tensor.const_data_ptr()) % 16 == 0; }

bool has_aligned_rows(const at::Tensor& matrix) {
  return matrix.stride(1) == 1 && matrix.stride(0) % row_multiple == 0 && is_aligned(matrix);
}

/// Of s, which is read by pairs.
bool has_even_rows(const at::Tensor& s) {
  return s.stride(1) == 1 && s.stride(0) % 2 == 0 && reinterpret_cast<uintptr_t>(s.const_data_ptr()) % 4 == 0;
}

GpuRows gpu_rows(const RowRange& rows) { return {rows.begin, rows.end}; }

/// Of an ExpandGroup or a LowRankTerm.
template <typename Group>
bool takes(const Group& group) {
  return group.column_begin % row_multiple == 0 && group.factor->width() % row_multiple == 0 && has_even_rows(group.s);
}

template <typename Group>
GpuExpandTerm term_of(const Group& group) {
  return {.rows = gpu_rows(group.rows),
          .column_begin = group.column_begin,
          .width = group.factor->width(),
          .s = group.s.const_data_ptr(),
          .s_stride = group.s.stride(0),
          .factor = dense_form(*group.factor).const_data_ptr(),
          .rank = group.factor->rank()};
}

}  // namespace

bool shrink_on_gpu(const at::Tensor& x, const std::vector<ShrinkGroup>& groups) {
  GpuKernels* kernels = kernels_for(x);
  if (kernels == nullptr || !has_aligned_rows(x) || x.size(1) % row_multiple != 0) return false;
  std::vector<GpuShrink> calls;
  for (const ShrinkGroup& group : groups) {
    calls.push_back({.rows = gpu_rows(group.rows),
                     .factor = dense_form(*group.factor).const_data_ptr(),
                     .rank = group.factor->rank(),
                     .scale = static_cast<float>(group.scale),
                     .s = group.s.mutable_data_ptr(),
                     .s_stride = group.s.stride(0)});
  }
  kernels->shrink(calls, x.const_data_ptr(), x.stride(0), x.size(1));
  return true;
}

namespace {

/// The kernels write bf16: what is added to a stream in f32 is made by itself.
bool add_to_stream_on_gpu(at::Tensor& y, const std::vector<ExpandGroup>& groups, const ExpandOptions& options) {
  if (kernels_for(groups.front().s) == nullptr || !std::ranges::all_of(groups, takes<ExpandGroup>)) return false;
  at::Tensor added = at::zeros(y.sizes(), groups.front().s.options());
  if (!add_expansions_on_gpu(added, groups, {.residual = {}, .dropout = options.dropout})) return false;
  std::set<int64_t> begins;  // rows of several groups hold what all of them add
  for (const ExpandGroup& group : groups) {
    if (group.rows.count() == 0 || !begins.insert(group.rows.begin).second) continue;
    const auto rows_of = [&](const at::Tensor& all) { return all.narrow(0, group.rows.begin, group.rows.count()); };
    rows_of(y).add_(rows_of(added));
    if (options.residual.defined()) rows_of(y).add_(rows_of(options.residual));
  }
  return true;
}

}  // namespace

bool add_expansions_on_gpu(at::Tensor& y, const std::vector<ExpandGroup>& groups, const ExpandOptions& options) {
  if (y.scalar_type() != groups.front().s.scalar_type()) return add_to_stream_on_gpu(y, groups, options);
  GpuKernels* kernels = kernels_for(y);
  if (kernels == nullptr || !has_aligned_rows(y) || y.size(1) % row_multiple != 0) return false;
  if (!std::ranges::all_of(groups, takes<ExpandGroup>)) return false;
  // Masks of these kernels count features from the first column.
  if (std::ranges::any_of(groups, [](const ExpandGroup& group) { return group.dropout && group.dropout->first_feature != 0; })) return false;
  if (options.residual.defined() && !has_aligned_rows(options.residual)) return false;
  std::vector<GpuExpandTerm> terms;
  std::vector<GpuRows> residual_rows;
  for (const ExpandGroup& group : groups) {
    GpuExpandTerm term = term_of(group);
    if (group.dropout) term.mask = {group.dropout->key, kernels::dropout_probability(group.dropout->probability)};
    if (group.bias.defined()) term.bias = group.bias.const_data_ptr<float>();
    terms.push_back(term);
    if (term.rows.count() > 0) residual_rows.push_back(term.rows);
  }
  std::ranges::sort(residual_rows, {}, &GpuRows::begin);
  const auto repeated = std::ranges::unique(residual_rows, {}, &GpuRows::begin);
  residual_rows.erase(repeated.begin(), repeated.end());
  GpuExpandStart start;
  if (options.residual.defined()) {
    start.residual = options.residual.const_data_ptr();
    start.residual_stride = options.residual.stride(0);
    start.residual_rows = residual_rows;
  }
  GpuMaskRows mask_rows;
  if (options.dropout.positions.defined()) {
    mask_rows.example_keys = reinterpret_cast<const uint64_t*>(options.dropout.example_keys.const_data_ptr<int64_t>());
    mask_rows.positions = options.dropout.positions.const_data_ptr<int32_t>();
  }
  kernels->expand(terms, start, mask_rows, y.mutable_data_ptr(), y.stride(0), y.size(0), y.size(1));
  return true;
}

bool accumulate_gradients_on_gpu(const at::Tensor& right, const std::vector<GradientGroup>& groups) {
  GpuKernels* kernels = kernels_for(right);
  const auto takes_group = [&](const GradientGroup& group) {
    return has_even_rows(group.left) && group.gradient.scalar_type() == at::kFloat && group.gradient.is_contiguous() &&
           is_aligned(group.gradient);
  };
  if (kernels == nullptr || !has_aligned_rows(right) || right.size(1) % row_multiple != 0) return false;
  if (!std::ranges::all_of(groups, takes_group)) return false;
  std::vector<GpuOuter> calls;
  for (const GradientGroup& group : groups) {
    calls.push_back({.rows = gpu_rows(group.rows),
                     .left = group.left.const_data_ptr(),
                     .left_stride = group.left.stride(0),
                     .rank = group.gradient.size(0),
                     .gradient = group.gradient.mutable_data_ptr<float>()});
  }
  const MemoryScope scope(MemoryKind::workspace);
  at::Tensor workspace;
  kernels->outer_products(calls, right.const_data_ptr(), right.stride(0), right.size(1), [&](int64_t bytes) {
    workspace = at::empty({bytes}, right.options().dtype(at::kByte));
    return workspace.mutable_data_ptr();
  });
  return true;
}

bool accumulate_row_sums_on_gpu(const std::vector<RowSum>& sums) {
  const at::Tensor& first = sums.front().right;
  GpuKernels* kernels = gpu_kernels_for(first);
  const auto takes_sum = [&](const RowSum& sum) {
    return sum.right.scalar_type() == first.scalar_type() && (sum.right.stride(1) == 1 || sum.right.size(1) <= 1) &&
           sum.gradient.scalar_type() == at::kFloat && sum.gradient.is_contiguous();
  };
  if (kernels == nullptr || !std::ranges::all_of(sums, takes_sum)) return false;
  std::vector<GpuColumnSum> calls;
  for (const RowSum& sum : sums) {
    calls.push_back({.values = sum.right.const_data_ptr(),
                     .stride = sum.right.stride(0),
                     .rows = sum.right.size(0),
                     .columns = sum.right.size(1),
                     .gradient = sum.gradient.mutable_data_ptr<float>()});
  }
  kernels->column_sums(gpu_type(first.scalar_type()), calls);
  return true;
}

bool start_product_on_gpu(at::Tensor& y, const std::vector<LowRankTerm>& given) {
  GpuKernels* kernels = kernels_for(y);
  if (kernels == nullptr || !has_aligned_rows(y) || y.size(1) % row_multiple != 0) return false;
  if (!std::ranges::all_of(given, takes<LowRankTerm>)) return false;
  std::vector<GpuExpandTerm> terms;
  std::ranges::transform(given, std::back_inserter(terms), term_of<LowRankTerm>);
  GpuExpandStart start;
  start.keeps_y = false;
  kernels->expand(terms, start, {}, y.mutable_data_ptr(), y.stride(0), y.size(0), y.size(1));
  return true;
}

}  // namespace cotune
