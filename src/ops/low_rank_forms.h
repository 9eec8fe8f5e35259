/// The two forms of a LowRankFactor. Internal to ops/: callers use low_rank.h.
#pragma once

#include <span>
#include <vector>

#include "kernels/matrix.h"
#include "kernels/product.h"
#include "ops/low_rank.h"

namespace cotune {

/// Packed matrices in one block of counted memory, packed by all threads. (Their own memory source would have to be called
/// by the threads, where a limit on memory cannot be told of.)
struct PackedBlock {
  PackedBlock() = default;
  explicit PackedBlock(std::span<const kernels::PackRequest> requests);
  at::Tensor memory;
  std::vector<kernels::PackedMatrix> matrices;
};

/// For our kernels, which read packed panels of the compute dtype (PackedForms).
class PackedFactor : public LowRankFactor {
 public:
  PackedFactor(const at::Tensor& master, at::ScalarType compute, FactorForm form);
  void refresh(const at::Tensor& master) override;

  enum class Side {
    shrink,  ///< [n, rank]
    expand,  ///< [rank, n]
  };
  /// How to pack the form of that side; the memory is the caller's matter.
  kernels::PackRequest request(Side side) const;
  /// nullptr where none is kept.
  const kernels::PackedMatrix* kept(Side side) const;

 private:
  at::Tensor master_;
  kernels::DType dtype_;
  int expand_parts_;
  FactorForm form_;
  PackedBlock kept_;  ///< to shrink by, to expand by; or none
};

/// What one grouped call reads of its factors: those that are kept, and the others packed for it, on all threads, in one
/// block of memory.
class PackedForms {
 public:
  PackedForms(const std::vector<const PackedFactor*>& factors, PackedFactor::Side side);
  const kernels::PackedMatrix& operator[](size_t index) const { return *forms_[index]; }

 private:
  PackedBlock made_;
  std::vector<const kernels::PackedMatrix*> forms_;
};

/// For ATen: a copy in the compute dtype.
class DenseFactor : public LowRankFactor {
 public:
  DenseFactor(const at::Tensor& master, at::ScalarType compute);
  void refresh(const at::Tensor& master) override;
  const at::Tensor& matrix() const { return matrix_; }

 private:
  at::Tensor matrix_;
};

/// The packed form, or nullptr where the factor is dense.
const PackedFactor* packed_form(const LowRankFactor& factor);
const at::Tensor& dense_form(const LowRankFactor& factor);

kernels::DType kernel_dtype(at::ScalarType dtype);

}  // namespace cotune
