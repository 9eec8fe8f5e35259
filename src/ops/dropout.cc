#include "ops/dropout.h"

#include <ATen/ATen.h>

#include <cmath>

#include "base/error.h"
#include "kernels/dropout.h"
#include "ops/backend.h"
#include "ops/call_counts.h"
#include "ops/low_rank_forms.h"

namespace cotune {
namespace {

// The formula of kernels/dropout.h in tensor operations. Tensors have no unsigned 64-bit arithmetic: int64 sums and
// products keep the same bits, and what a shift of a negative number brings in from the left is cut off.

constexpr int64_t low_half = 0xFFFFFFFF;

int64_t signed_bits(uint64_t value) { return static_cast<int64_t>(value); }

at::Tensor shifted_right(const at::Tensor& x, int64_t bits) {
  return at::bitwise_right_shift(x, bits).bitwise_and_(signed_bits(~uint64_t{0} >> bits));
}

/// mix64 (base/random.h) of every element.
at::Tensor mixed(const at::Tensor& values) {
  at::Tensor x = values + signed_bits(0x9e3779b97f4a7c15ULL);
  x = x.bitwise_xor_(shifted_right(x, 30)).mul_(signed_bits(0xbf58476d1ce4e5b9ULL));
  x = x.bitwise_xor_(shifted_right(x, 27)).mul_(signed_bits(0x94d049bb133111ebULL));
  return x.bitwise_xor_(shifted_right(x, 31));
}

/// `round` of the formula, in place, of elements in [0, 2^32).
void mix_round(at::Tensor& x) {
  for (const int64_t factor : {0x85EBCA6BL, 0xC2B2AE35L}) {
    x.bitwise_xor_(at::bitwise_right_shift(x, factor == 0x85EBCA6BL ? 16 : 13)).mul_(factor).bitwise_and_(low_half);
  }
  x.bitwise_xor_(at::bitwise_right_shift(x, 16));
}

/// One value per group → one per row of the groups.
at::Tensor per_row(const at::Tensor& values, const at::Tensor& counts, int64_t rows) {
  return values.index_select(0, at::repeat_interleave(counts, std::optional<int64_t>(rows)));
}

/// The groups' rows of a tensor below one another; groups may share rows.
at::Tensor rows_below_one_another(const std::vector<DropoutGroup>& groups, const at::Tensor& tensor) {
  std::vector<at::Tensor> parts;
  for (const DropoutGroup& group : groups) parts.push_back(tensor.narrow(0, group.rows.begin, group.rows.count()));
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

}  // namespace

at::Tensor dropout_masks(const std::vector<DropoutGroup>& groups, const DropoutRows& rows, int64_t features,
                         at::ScalarType dtype) {
  std::vector<int64_t> keys, counts, thresholds;
  std::vector<double> scales;
  for (const DropoutGroup& group : groups) {
    keys.push_back(signed_bits(group.site.key));
    counts.push_back(group.rows.count());
    const auto probability = static_cast<double>(kernels::dropout_probability(group.site.probability));
    thresholds.push_back(static_cast<int64_t>(std::floor(probability * 4294967296.0)));
    scales.push_back(1.0 / (1.0 - group.site.probability));
  }
  const at::Device device = rows.positions.device();
  const auto on_device = [&](const auto& values, at::ScalarType type) { return at::tensor(values).to(device, type, /*non_blocking=*/true); };
  const at::Tensor example_keys = rows_below_one_another(groups, rows.example_keys);
  const int64_t count = example_keys.size(0);
  const at::Tensor group_rows = on_device(counts, at::kLong);
  const auto of_rows = [&](const at::Tensor& values) { return per_row(values, group_rows, count); };
  const at::Tensor site_and_example =
      mixed(mixed(example_keys).bitwise_xor_(of_rows(on_device(keys, at::kLong))));
  const at::Tensor positions = rows_below_one_another(groups, rows.positions).to(at::kLong);
  const at::Tensor row_keys = mixed(mixed(positions).bitwise_xor_(site_and_example)).unsqueeze(1);
  const int64_t first = groups.front().site.first_feature;
  const at::Tensor numbers = at::arange(first, first + features, row_keys.options());
  at::Tensor hash = (numbers * int64_t{0x9E3779B1}).bitwise_and_(low_half).bitwise_xor(row_keys.bitwise_and(low_half));
  mix_round(hash);
  hash.bitwise_xor_(shifted_right(row_keys, 32));
  mix_round(hash);
  return hash.ge(of_rows(on_device(thresholds, at::kLong)).unsqueeze(1))
      .to(dtype)
      .mul_(of_rows(on_device(scales, dtype)).unsqueeze(1));
}

at::Tensor apply_dropout(const std::vector<DropoutGroup>& groups, const DropoutRows& rows, const at::Tensor& x) {
  count_adapter_call();
  // A GPU's kernels count features from the first column.
  GpuKernels* gpu = groups.front().site.first_feature == 0 ? gpu_kernels_for(x) : nullptr;
  if (gpu == nullptr && !use_kernels(x)) {
    const at::ScalarType wide = accumulation_dtype(x.scalar_type());
    const at::Tensor masks = dropout_masks(groups, rows, x.size(1), wide);
    return rows_below_one_another(groups, x).to(wide).mul(masks).to(x.scalar_type());
  }
  std::vector<int64_t> targets;
  int64_t count = 0;
  for (const DropoutGroup& group : groups) {
    targets.push_back(count);
    count += group.rows.count();
  }
  at::Tensor y = at::empty({count, x.size(1)}, x.options());
  const auto* example_keys = reinterpret_cast<const uint64_t*>(rows.example_keys.const_data_ptr<int64_t>());
  const int32_t* positions = rows.positions.const_data_ptr<int32_t>();
  if (gpu != nullptr) {
    COTUNE_CHECK(x.stride(1) == 1 && rows.example_keys.is_contiguous() && rows.positions.is_contiguous());
    std::vector<GpuDropoutGroup> sites;
    for (size_t i = 0; i < groups.size(); ++i) {
      const DropoutGroup& group = groups[i];
      sites.push_back({{group.site.key, kernels::dropout_probability(group.site.probability)}, {group.rows.begin, group.rows.end}, targets[i]});
    }
    gpu->dropout(gpu_type(x.scalar_type()), sites, {example_keys, positions}, x.const_data_ptr(), x.stride(0), x.size(1),
                 y.mutable_data_ptr());
    return y;
  }
  std::vector<kernels::DropoutGroup> sites;
  for (size_t i = 0; i < groups.size(); ++i) {
    sites.push_back(
        {{groups[i].site.key, kernels::dropout_probability(groups[i].site.probability), groups[i].site.first_feature}, groups[i].rows, targets[i]});
  }
  kernels::dropout_forward(kernel_dtype(x.scalar_type()), sites, {x.size(1), example_keys, positions},
                           x.const_data_ptr(), x.stride(0), y.mutable_data_ptr(), y.stride(0));
  return y;
}

}  // namespace cotune
