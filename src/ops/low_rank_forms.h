/// The two forms of a LowRankFactor. Internal to ops/: callers use low_rank.h.
#pragma once

#include "kernels/matrix.h"
#include "kernels/product.h"
#include "ops/low_rank.h"

namespace cotune {

/// For our kernels: packed panels of the compute dtype.
class PackedFactor : public LowRankFactor {
 public:
  PackedFactor(const at::Tensor& master, at::ScalarType compute, FactorUse use);
  void refresh(const at::Tensor& master) override;
  int64_t bytes() const override { return for_shrink_.bytes() + for_expand_.bytes(); }
  const kernels::PackedMatrix& for_shrink() const { return for_shrink_; }  ///< [n, rank]
  const kernels::PackedMatrix& for_expand() const { return for_expand_; }  ///< [rank, n]

 private:
  kernels::PackedMatrix for_shrink_, for_expand_;
};

/// For ATen: a copy in the compute dtype.
class DenseFactor : public LowRankFactor {
 public:
  DenseFactor(const at::Tensor& master, at::ScalarType compute);
  void refresh(const at::Tensor& master) override;
  int64_t bytes() const override { return static_cast<int64_t>(matrix_.nbytes()); }
  const at::Tensor& matrix() const { return matrix_; }

 private:
  at::Tensor matrix_;
};

/// The packed form, or nullptr where the factor is dense.
const PackedFactor* packed_form(const LowRankFactor& factor);
const at::Tensor& dense_form(const LowRankFactor& factor);

kernels::DType kernel_dtype(at::ScalarType dtype);

}  // namespace cotune
