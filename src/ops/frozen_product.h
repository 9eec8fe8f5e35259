#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/low_rank.h"

namespace cotune {

/// Options of one product beside its operands.
struct ProductOptions {
  const std::vector<LowRankTerm>* terms = nullptr;     ///< added inside the accumulators where kernels allow
  at::Tensor residual;                                 ///< [rows, out], of y's dtype; or undefined
  const std::vector<RowRange>* residual_rows = nullptr;  ///< the rows that get it; nullptr: all
};

/// Which of its products a weight is read for.
enum class WeightForm { forward, backward };

/// A frozen product but for its weights.
struct ProductOutline {
  int64_t in_features = 0, out_features = 0;
  at::ScalarType compute = at::kFloat;
  at::Device device = at::kCPU;
  bool packed = false;  ///< for our kernels, once per form; else both forms are the same bytes
  int parts = 0;        ///< kernels::PackedMatrix::parts
  at::Tensor bias;      ///< or undefined
};

/// A frozen weight (or several side by side: q|k|v, gate|up) with its two products. Immutable and shared by all jobs;
/// the place where quantised weights will join, so that families never see how a weight is stored.
class FrozenProduct {
 public:
  virtual ~FrozenProduct() = default;
  int64_t in_features() const { return in_features_; }
  int64_t out_features() const { return out_features_; }

  /// y = x·Wᵀ + bias + terms (+ residual), x [rows, in] → y [rows, out], compute dtype; with a residual in the accumulation dtype (a
  /// stream that is not rounded) y is in that. A row's bits depend on that row, its own terms and its residual alone.
  virtual at::Tensor forward(const at::Tensor& x, const ProductOptions& options) const = 0;
  /// dx = dy·W + terms, dy [rows, out] → dx [rows, in].
  virtual at::Tensor backward(const at::Tensor& dy, const ProductOptions& options) const = 0;
  /// W[rows], rows [n] (int64, on the weight's device) → [n, in], compute dtype, exactly: a tied embedding's lookup.
  virtual at::Tensor weight_rows(const at::Tensor& rows) const = 0;
  virtual int64_t bytes() const = 0;

  virtual ProductOutline outline() const = 0;
  /// What a product reads beside the bias: bytes [n] that share its memory, and are not to be used when it is gone. Equal for equal
  /// weights and outlines, on any machine.
  virtual at::Tensor form(WeightForm form) const = 0;

 protected:
  FrozenProduct(int64_t in_features, int64_t out_features) : in_features_(in_features), out_features_(out_features) {}

 private:
  int64_t in_features_, out_features_;
};

/// Weights as Hugging Face stores them, [out_i, in] each, same dtype; biases [out_i] or an empty list. Packs for our
/// kernels where kernel_isa allows and the sizes are multiples of 32; otherwise keeps one [Σ out_i, in] tensor.
/// need_backward false leaves out what only backward uses.
std::shared_ptr<const FrozenProduct> make_frozen_product(const std::vector<at::Tensor>& weights,
                                                         const std::vector<at::Tensor>& biases,
                                                         bool need_backward = true);

/// A product with that form alone, whose bytes have no meaning until all of them have been written (FrozenProduct::form).
std::shared_ptr<const FrozenProduct> make_unwritten_product(const ProductOutline& outline, WeightForm form);

}  // namespace cotune
