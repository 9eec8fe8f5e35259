#include "ops/low_rank.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/float_parts.h"
#include "kernels/low_rank.h"
#include "kernels/outer_product.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"
#include "ops/memory.h"
#include "ops/row_products.h"

namespace cotune {
namespace {

constexpr int64_t widest_left = 512;  // what kernels::outer_products takes at once

bool packs(int64_t width, at::ScalarType compute, at::Device device) {
  return kernel_isa(compute, device) != kernels::Isa::none && width % kernels::PackedMatrix::panel_columns == 0;
}

}  // namespace

int64_t padded_rank(int64_t rank, at::ScalarType compute, at::Device device) {
  if (kernel_isa(compute, device) == kernels::Isa::none) return rank;
  constexpr int64_t panel = kernels::PackedMatrix::panel_columns;
  return (rank + panel - 1) / panel * panel;
}

PackedFactor::PackedFactor(const at::Tensor& master, at::ScalarType compute, FactorUse use)
    : LowRankFactor(master.size(0), cotune::padded_rank(master.size(0), compute, master.device()),
                    master.size(1)) {
  const kernels::DType dtype = kernel_dtype(compute);
  if (use != FactorUse::expand) for_shrink_ = kernels::PackedMatrix(width(), rank(), dtype, counted_memory());
  const bool in_parts = kernel_isa(compute, master.device()) == kernels::Isa::amx_f32;
  if (use != FactorUse::shrink) {
    for_expand_ = kernels::PackedMatrix(rank(), width(), dtype, counted_memory(),
                                        in_parts ? kernels::largest_part_count : 0);
  }
  refresh(master);
}

void PackedFactor::refresh(const at::Tensor& master) {
  COTUNE_CHECK(master.scalar_type() == at::kFloat && master.is_contiguous());
  kernels::MatrixView view{master.const_data_ptr(), width(), kernels::DType::f32, kernels::MatrixView::Order::rows};
  if (!for_expand_.empty()) for_expand_.repack(view);
  view.order = kernels::MatrixView::Order::transposed;
  if (!for_shrink_.empty()) for_shrink_.repack(view);
}

DenseFactor::DenseFactor(const at::Tensor& master, at::ScalarType compute)
    : LowRankFactor(master.size(0), cotune::padded_rank(master.size(0), compute, master.device()), master.size(1)),
      matrix_(master.to(compute).clone()) {}

void DenseFactor::refresh(const at::Tensor& master) { matrix_.copy_(master); }

std::unique_ptr<LowRankFactor> make_low_rank_factor(const at::Tensor& master, at::ScalarType compute, FactorUse use) {
  if (packs(master.size(1), compute, master.device())) return std::make_unique<PackedFactor>(master, compute, use);
  return std::make_unique<DenseFactor>(master, compute);
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
    group.s = at::empty({group.rows.count(), group.factor->padded_rank()}, x.options());
  }
  if (packed_form(*groups.front().factor) == nullptr) {
    for (ShrinkGroup& group : groups) {
      const at::Tensor rows = x.narrow(0, group.rows.begin, group.rows.count());
      const int64_t rank = group.factor->rank();
      at::Tensor s = row_product(rows, dense_form(*group.factor).t());
      if (group.scale != 1) s.mul_(group.scale);
      group.s.narrow(1, 0, rank).copy_(s);
      group.s.narrow(1, rank, group.s.size(1) - rank).zero_();
    }
    return;
  }
  std::vector<kernels::ShrinkGroup> packed;
  packed.reserve(groups.size());
  for (ShrinkGroup& group : groups) {
    packed.push_back({group.rows, &packed_form(*group.factor)->for_shrink(), group.s.mutable_data_ptr(),
                      group.s.stride(0), static_cast<float>(group.scale)});
  }
  kernels::shrink(kernel_isa(x.scalar_type(), x.device()), x.const_data_ptr(), x.stride(0), packed);
}

at::Tensor expand(const LowRankTerm& term) {
  const PackedFactor* packed = packed_form(*term.factor);
  if (packed == nullptr) return row_product(term.s.narrow(1, 0, term.factor->rank()), dense_form(*term.factor));
  at::Tensor y = at::empty({term.rows.count(), term.factor->width()}, term.s.options());
  kernels::product(kernel_isa(y.scalar_type(), y.device()), term.s.const_data_ptr(), term.s.stride(0),
                   term.rows.count(), packed->for_expand(), y.mutable_data_ptr(), y.stride(0));
  return y;
}

void accumulate_gradients(const at::Tensor& right, const std::vector<GradientGroup>& groups) {
  if (groups.empty()) return;
  const kernels::Isa isa = kernel_isa(right.scalar_type(), right.device());
  if (isa == kernels::Isa::none) {
    for (const GradientGroup& group : groups) {
      const at::Tensor left = group.left.narrow(1, 0, group.gradient.size(0)).to(group.gradient.scalar_type());
      const at::Tensor rows = right.narrow(0, group.rows.begin, group.rows.count()).to(group.gradient.scalar_type());
      at::Tensor gradient = group.gradient;
      gradient.add_(at::mm(left.t(), rows));
    }
    return;
  }
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

}  // namespace cotune
