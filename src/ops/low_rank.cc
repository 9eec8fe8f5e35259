#include "ops/low_rank.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "kernels/column_sums.h"
#include "kernels/expand.h"
#include "kernels/float_parts.h"
#include "kernels/low_rank.h"
#include "kernels/outer_product.h"
#include "ops/backend.h"
#include "ops/call_counts.h"
#include "ops/low_rank_batches.h"
#include "ops/low_rank_forms.h"
#include "ops/low_rank_gpu.h"

namespace cotune {
namespace {

constexpr int64_t widest_left = 512;  // what kernels::outer_products takes at once

bool packs(int64_t width, at::ScalarType compute, at::Device device) {
  return kernel_isa(compute, device) != kernels::Isa::none && width % kernels::PackedMatrix::panel_columns == 0;
}

/// Memory that is there already, for one matrix.
kernels::MemorySource place_at(char* memory) {
  return {[](void* place, size_t) { return place; }, [](void*, void*, size_t) noexcept {}, memory};
}

int64_t bytes_of(const kernels::PackRequest& request) {
  return kernels::PackedMatrix::bytes_for(request.k, request.n, request.dtype, request.parts);
}

}  // namespace

int64_t padded_rank(int64_t rank, at::ScalarType compute, at::Device device) {
  int64_t multiple = 1;
  if (kernel_isa(compute, device) != kernels::Isa::none) multiple = kernels::PackedMatrix::panel_columns;
  if (device.is_cuda() && compute == at::kBFloat16) multiple = gpu_rank_multiple;
  return (rank + multiple - 1) / multiple * multiple;
}

PackedBlock::PackedBlock(std::span<const kernels::PackRequest> requests) {
  int64_t bytes = 0;
  for (const kernels::PackRequest& request : requests) bytes += bytes_of(request);
  if (bytes > 0) memory = at::empty({bytes}, at::kByte);
  std::vector<kernels::PackRequest> placed(requests.begin(), requests.end());
  char* place = bytes > 0 ? static_cast<char*>(memory.mutable_data_ptr()) : nullptr;
  for (kernels::PackRequest& request : placed) {
    request.memory = place_at(place);
    place += bytes_of(request);
  }
  matrices = kernels::pack_each(placed);
}

PackedFactor::PackedFactor(const at::Tensor& master, at::ScalarType compute, FactorForm form)
    : LowRankFactor(master.size(0), cotune::padded_rank(master.size(0), compute, master.device()), master.size(1)),
      dtype_(kernel_dtype(compute)),
      expand_parts_(kernel_isa(compute, master.device()) == kernels::Isa::amx_f32 ? kernels::largest_part_count : 0),
      form_(form) {
  refresh(master);
}

kernels::PackRequest PackedFactor::request(Side side) const {
  using Order = kernels::MatrixView::Order;
  const bool shrinks = side == Side::shrink;
  return {.k = shrinks ? width() : rank(),
          .n = shrinks ? rank() : width(),
          .dtype = dtype_,
          .parts = shrinks ? 0 : expand_parts_,
          .source = {master_.const_data_ptr(), width(), kernels::DType::f32, shrinks ? Order::transposed : Order::rows}};
}

void PackedFactor::refresh(const at::Tensor& master) {
  COTUNE_CHECK(master.scalar_type() == at::kFloat && master.is_contiguous());
  master_ = master;
  if (form_ != FactorForm::kept) return;
  const std::array requests{request(Side::shrink), request(Side::expand)};
  kept_ = PackedBlock(requests);
}

const kernels::PackedMatrix* PackedFactor::kept(Side side) const {
  return kept_.matrices.empty() ? nullptr : &kept_.matrices[side == Side::shrink ? 0 : 1];
}

PackedForms::PackedForms(const std::vector<const PackedFactor*>& factors, PackedFactor::Side side) {
  std::vector<kernels::PackRequest> requests;
  for (const PackedFactor* factor : factors) {
    if (factor->kept(side) == nullptr) requests.push_back(factor->request(side));
  }
  made_ = PackedBlock(requests);
  size_t next = 0;
  for (const PackedFactor* factor : factors) {
    const kernels::PackedMatrix* kept = factor->kept(side);
    forms_.push_back(kept != nullptr ? kept : &made_.matrices[next++]);
  }
}

DenseFactor::DenseFactor(const at::Tensor& master, at::ScalarType compute)
    : LowRankFactor(master.size(0), cotune::padded_rank(master.size(0), compute, master.device()), master.size(1)),
      matrix_(master.to(compute).clone()) {}

void DenseFactor::refresh(const at::Tensor& master) { matrix_.copy_(master); }

std::unique_ptr<LowRankFactor> make_low_rank_factor(const at::Tensor& master, at::ScalarType compute, FactorForm form) {
  if (packs(master.size(1), compute, master.device())) return std::make_unique<PackedFactor>(master, compute, form);
  return std::make_unique<DenseFactor>(master, compute);
}

void refresh_factors(const std::vector<FactorRefresh>& refreshes) {
  std::vector<at::Tensor> matrices, masters;
  for (const FactorRefresh& refresh : refreshes) {
    if (packed_form(*refresh.factor) != nullptr) {
      refresh.factor->refresh(refresh.master);
    } else {
      matrices.push_back(dense_form(*refresh.factor));
      masters.push_back(refresh.master);
    }
  }
  if (!matrices.empty()) at::_foreach_copy_(matrices, masters);
}

const PackedFactor* packed_form(const LowRankFactor& factor) { return dynamic_cast<const PackedFactor*>(&factor); }

const at::Tensor& dense_form(const LowRankFactor& factor) {
  const auto* dense = dynamic_cast<const DenseFactor*>(&factor);
  COTUNE_CHECK(dense != nullptr, "a packed factor reached the ATen path");
  return dense->matrix();
}

kernels::DType kernel_dtype(at::ScalarType dtype) {
  COTUNE_CHECK(dtype == at::kBFloat16 || dtype == at::kFloat);
  return dtype == at::kBFloat16 ? kernels::DType::bf16 : kernels::DType::f32;
}

void shrink(const at::Tensor& x, std::vector<ShrinkGroup>& groups) {
  if (groups.empty()) return;
  for (ShrinkGroup& group : groups) {
    const std::array<int64_t, 2> sizes{group.rows.count(), group.factor->padded_rank()};
    group.s = at::empty(sizes, x.options());
  }
  count_adapter_call();
  if (packed_form(*groups.front().factor) == nullptr) {
    if (shrink_on_gpu(x, groups)) return;
    for (const ShrinkGroup& group : groups) {
      const int64_t rank = group.factor->rank(), pads = group.factor->padded_rank() - rank;
      if (pads > 0) group.s.narrow(1, rank, pads).zero_();
    }
    shrink_in_batches(x, groups);
    return;
  }
  std::vector<const PackedFactor*> factors;
  for (const ShrinkGroup& group : groups) factors.push_back(packed_form(*group.factor));
  const PackedForms forms(factors, PackedFactor::Side::shrink);
  std::vector<kernels::ShrinkGroup> packed;
  packed.reserve(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    packed.push_back({groups[i].rows, &forms[i], groups[i].s.mutable_data_ptr(), groups[i].s.stride(0),
                      static_cast<float>(groups[i].scale)});
  }
  kernels::shrink(kernel_isa(x.scalar_type(), x.device()), x.const_data_ptr(), x.stride(0), packed);
}

void add_expansions(at::Tensor& y, const std::vector<ExpandGroup>& all, const ExpandOptions& options) {
  if (all.empty()) return;
  if (add_expansions_on_gpu(y, all, options)) {
    count_adapter_call();
    return;
  }
  std::vector<ExpandGroup> groups, dense;  // an odd projection's factors are not packed
  for (const ExpandGroup& group : all) (packed_form(*group.factor) != nullptr ? groups : dense).push_back(group);
  for (const std::vector<ExpandGroup>& site : sites_of(dense)) {
    count_adapter_call();
    expand_in_batches(y, site, options);
  }
  if (groups.empty()) return;
  count_adapter_call();
  std::vector<const PackedFactor*> factors;
  std::vector<kernels::DropoutSite> masks(groups.size());
  for (const ExpandGroup& group : groups) factors.push_back(packed_form(*group.factor));
  const PackedForms forms(factors, PackedFactor::Side::expand);
  std::vector<kernels::ExpandGroup> packed;
  for (size_t i = 0; i < groups.size(); ++i) {
    const ExpandGroup& group = groups[i];
    if (group.dropout) {
      masks[i] = {group.dropout->key, kernels::dropout_probability(group.dropout->probability), group.dropout->first_feature};
    }
    packed.push_back({.rows = group.rows,
                      .column_begin = group.column_begin,
                      .s = group.s.const_data_ptr(),
                      .s_stride = group.s.stride(0),
                      .b = &forms[i],
                      .dropout = group.dropout ? &masks[i] : nullptr,
                      .bias = group.bias.defined() ? group.bias.const_data_ptr<float>() : nullptr});
  }
  kernels::ExpandOptions kernel_options;
  if (options.residual.defined()) {
    kernel_options.residual = options.residual.const_data_ptr();
    kernel_options.residual_stride = options.residual.stride(0);
  }
  const at::ScalarType compute = groups.front().s.scalar_type();
  kernel_options.wide = y.scalar_type() != compute;
  if (options.dropout.positions.defined()) {
    kernel_options.example_keys = reinterpret_cast<const uint64_t*>(options.dropout.example_keys.const_data_ptr<int64_t>());
    kernel_options.positions = options.dropout.positions.const_data_ptr<int32_t>();
  }
  kernels::expand_add(kernel_isa(compute, y.device()), kernel_dtype(compute), y.mutable_data_ptr(),
                      y.stride(0), packed, kernel_options);
}

void accumulate_gradients(const at::Tensor& right, const std::vector<GradientGroup>& groups) {
  if (groups.empty()) return;
  const kernels::Isa isa = kernel_isa(right.scalar_type(), right.device());
  if (isa == kernels::Isa::none) {
    if (accumulate_gradients_on_gpu(right, groups)) {
      count_adapter_call();
    } else {
      accumulate_in_batches(right, groups);
    }
    return;
  }
  count_adapter_call();
  std::vector<kernels::OuterGroup> outer;
  outer.reserve(groups.size());
  for (const GradientGroup& group : groups) {
    COTUNE_CHECK(group.gradient.is_contiguous() && group.gradient.scalar_type() == at::kFloat);
    for (int64_t begin = 0; begin < group.gradient.size(0); begin += widest_left) {
      const int64_t count = std::min(widest_left, group.gradient.size(0) - begin);
      const at::Tensor left = group.left.narrow(1, begin, count), gradient = group.gradient.narrow(0, begin, count);
      outer.push_back({group.rows, left.const_data_ptr(), left.stride(0), count,
                       static_cast<float*>(gradient.mutable_data_ptr()), gradient.size(1), 1.0f});
    }
  }
  kernels::outer_products(isa, kernel_dtype(right.scalar_type()), right.const_data_ptr(), right.stride(0),
                          right.size(1), outer);
}

void accumulate_row_sums(const std::vector<RowSum>& sums) {
  if (sums.empty()) return;
  count_adapter_call();
  const at::Tensor& first = sums.front().right;
  if (!use_kernels(first)) {
    if (!accumulate_row_sums_on_gpu(sums)) sum_in_batches(sums);
    return;
  }
  std::vector<kernels::ColumnSum> columns;
  for (const RowSum& sum : sums) {
    columns.push_back({sum.right.const_data_ptr(), sum.right.stride(0), sum.right.size(0), sum.right.size(1),
                       sum.gradient.mutable_data_ptr<float>()});
  }
  kernels::column_sums(kernel_dtype(first.scalar_type()), columns);
}

}  // namespace cotune
