#include "ops/frozen_product.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/float_parts.h"
#include "kernels/product.h"
#include "ops/backend.h"
#include "ops/call_counts.h"
#include "ops/low_rank_forms.h"
#include "ops/low_rank_gpu.h"
#include "ops/memory.h"
#include "ops/row_products.h"

namespace cotune {
namespace {

/// ATen: one [Σ out, in] tensor in the compute dtype.
class DenseProduct : public FrozenProduct {
 public:
  DenseProduct(at::Tensor weight, at::Tensor bias)
      : FrozenProduct(weight.size(1), weight.size(0)), weight_(std::move(weight)), bias_(std::move(bias)) {}

  at::Tensor forward(const at::Tensor& x, const ProductOptions& options) const override {
    return product(x, weight_.t(), bias_, options);
  }

  at::Tensor backward(const at::Tensor& dy, const ProductOptions& options) const override {
    return product(dy, weight_, {}, options);
  }

  at::Tensor weight_rows(const at::Tensor& rows) const override { return weight_.index_select(0, rows); }

  int64_t bytes() const override {
    return static_cast<int64_t>(weight_.nbytes() + (bias_.defined() ? bias_.nbytes() : 0));
  }

  ProductOutline outline() const override {
    return {.in_features = in_features(),
            .out_features = out_features(),
            .compute = weight_.scalar_type(),
            .device = weight_.device(),
            .packed = false,
            .parts = 0,
            .bias = bias_};
  }

  at::Tensor form(WeightForm) const override { return weight_.view({-1}).view(at::kByte); }

 private:
  static at::Tensor product(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& bias,
                            const ProductOptions& options) {
    count_frozen_call();
    const bool has_terms = options.terms != nullptr && !options.terms->empty();
    at::Tensor y;
    if (has_terms && x.is_cuda()) {
      // The product is added to its terms, in f32: its pass over y hides the reading. Bias and residual come after: beside
      // values so much larger than a term, bf16 would round the term away.
      y = at::empty({x.size(0), matrix.size(1)}, x.options());
      if (start_product_on_gpu(y, *options.terms)) {
        y.addmm_(x, matrix);
        if (bias.defined()) y.add_(bias);
        add_residual(y, options);
        return y;
      }
    }
    y = row_product(x, matrix, bias);
    if (has_terms) add_terms(y, *options.terms);
    add_residual(y, options);
    return y;
  }

  static void add_terms(at::Tensor& y, const std::vector<LowRankTerm>& terms) {
    std::vector<ExpandGroup> groups;
    for (const LowRankTerm& term : terms) {
      groups.push_back({.rows = term.rows, .column_begin = term.column_begin, .s = term.s, .factor = term.factor});
    }
    add_expansions(y, groups);
  }

  static void add_residual(at::Tensor& y, const ProductOptions& options) {
    if (!options.residual.defined()) return;
    const at::ScalarType summed = options.residual.scalar_type();
    if (options.residual_rows == nullptr) {
      // A GPU widens as it adds; a CPU makes a copy in f32 anyway, which the sum can take the place of.
      y = y.is_cpu() || y.scalar_type() == summed ? y.to(summed).add_(options.residual) : at::add(y, options.residual);
      return;
    }
    y = y.to(summed);
    for (const RowRange& rows : *options.residual_rows) {
      y.narrow(0, rows.begin, rows.count()).add_(options.residual.narrow(0, rows.begin, rows.count()));
    }
  }

  at::Tensor weight_, bias_;
};

/// As many bf16 parts as hold f32 weights exactly, where products run on parts; else 0.
int part_count(const std::vector<at::Tensor>& weights) {
  const at::Tensor& first = weights.front();
  if (kernel_isa(first.scalar_type(), first.device()) != kernels::Isa::amx_f32) return 0;
  int parts = 1;
  for (const at::Tensor& weight : weights) {
    const at::Tensor values = weight.contiguous();
    parts = std::max(parts, kernels::exact_part_count(values.const_data_ptr<float>(), values.numel()));
  }
  return parts;
}

/// Our kernels: the weight packed once for each direction.
class PackedProduct : public FrozenProduct {
 public:
  PackedProduct(const std::vector<at::Tensor>& weights, at::Tensor bias, int64_t out_features, bool need_backward)
      : FrozenProduct(weights.front().size(1), out_features), bias_(std::move(bias)) {
    const at::ScalarType compute = weights.front().scalar_type();
    const kernels::DType dtype = kernel_dtype(compute);
    device_ = weights.front().device();
    compute_ = compute;
    const int parts = part_count(weights);
    for_forward_ = kernels::PackedMatrix(in_features(), out_features, dtype, counted_memory(), parts);
    int64_t column = 0;
    for (const at::Tensor& weight : weights) {
      for_forward_.pack_columns(column, weight.size(0),
                                {weight.const_data_ptr(), weight.stride(0), dtype,
                                 kernels::MatrixView::Order::transposed});
      column += weight.size(0);
    }
    if (!need_backward) return;
    const at::Tensor joined = weights.size() == 1 ? weights.front() : at::cat(weights);
    for_backward_ = kernels::PackedMatrix(out_features, in_features(), dtype, counted_memory(), parts);
    for_backward_.repack({joined.const_data_ptr(), joined.stride(0), dtype, kernels::MatrixView::Order::rows});
  }

  PackedProduct(const ProductOutline& outline, WeightForm form)
      : FrozenProduct(outline.in_features, outline.out_features), bias_(outline.bias), compute_(outline.compute), device_(outline.device) {
    const bool is_forward = form == WeightForm::forward;
    const int64_t k = is_forward ? outline.in_features : outline.out_features, n = is_forward ? outline.out_features : outline.in_features;
    (is_forward ? for_forward_ : for_backward_) = kernels::PackedMatrix::unwritten(k, n, kernel_dtype(compute_), counted_memory(), outline.parts);
  }

  at::Tensor forward(const at::Tensor& x, const ProductOptions& options) const override {
    return multiply(x, for_forward_, out_features(), options, bias_.defined() ? bias_.const_data_ptr() : nullptr);
  }

  at::Tensor backward(const at::Tensor& dy, const ProductOptions& options) const override {
    COTUNE_CHECK(!for_backward_.empty(), "a product without its backward form was asked for a backward");
    return multiply(dy, for_backward_, in_features(), options, nullptr);
  }

  at::Tensor weight_rows(const at::Tensor& rows) const override {
    const at::Tensor indices = rows.contiguous();
    const int64_t* row = indices.const_data_ptr<int64_t>();
    at::Tensor values = at::empty({indices.numel(), in_features()}, at::TensorOptions().dtype(at::kFloat));
    auto* value = values.mutable_data_ptr<float>();
    for (int64_t i = 0; i < indices.numel(); ++i) for_forward_.read_column(row[i], value + i * in_features());
    return values.to(compute_);
  }

  int64_t bytes() const override {
    return for_forward_.bytes() + for_backward_.bytes() + (bias_.defined() ? static_cast<int64_t>(bias_.nbytes()) : 0);
  }

  ProductOutline outline() const override {
    return {.in_features = in_features(),
            .out_features = out_features(),
            .compute = compute_,
            .device = device_,
            .packed = true,
            .parts = for_forward_.parts(),
            .bias = bias_};
  }

  at::Tensor form(WeightForm form) const override {
    const kernels::PackedMatrix& matrix = form == WeightForm::forward ? for_forward_ : for_backward_;
    return at::from_blob(const_cast<void*>(matrix.panel(0)), {matrix.bytes()}, at::TensorOptions().dtype(at::kByte));
  }

 private:
  at::Tensor multiply(const at::Tensor& x, const kernels::PackedMatrix& matrix, int64_t columns,
                      const ProductOptions& options, const void* bias) const {
    COTUNE_CHECK(x.stride(1) == 1 && x.scalar_type() == compute_);
    count_frozen_call();
    const at::ScalarType of_y = options.residual.defined() ? options.residual.scalar_type() : compute_;
    at::Tensor y = at::empty({x.size(0), columns}, x.options().dtype(of_y));
    std::vector<const PackedFactor*> factors;
    if (options.terms != nullptr) {
      for (const LowRankTerm& term : *options.terms) factors.push_back(packed_form(*term.factor));
    }
    const PackedForms forms(factors, PackedFactor::Side::expand);
    std::vector<kernels::LowRankTerm> terms;
    for (size_t i = 0; i < factors.size(); ++i) {
      const LowRankTerm& term = (*options.terms)[i];
      terms.push_back({term.rows, term.column_begin, term.column_begin + term.factor->width(), term.s.const_data_ptr(),
                       term.s.stride(0), &forms[i]});
    }
    kernels::ProductOptions kernel_options{.terms = terms, .bias = bias};
    const std::vector<RowRange> all_rows{{0, x.size(0)}};
    if (options.residual.defined()) {
      kernel_options.residual = options.residual.const_data_ptr();
      kernel_options.residual_stride = options.residual.stride(0);
      kernel_options.wide = of_y != compute_;
      kernel_options.residual_rows = options.residual_rows == nullptr ? all_rows : *options.residual_rows;
    }
    kernels::product(kernel_isa(compute_, device_), x.const_data_ptr(), x.stride(0), x.size(0), matrix,
                     y.mutable_data_ptr(), y.stride(0), kernel_options);
    return y;
  }

  at::Tensor bias_;
  at::ScalarType compute_ = at::kFloat;
  at::Device device_ = at::kCPU;
  kernels::PackedMatrix for_forward_, for_backward_;
};

}  // namespace

std::shared_ptr<const FrozenProduct> make_frozen_product(const std::vector<at::Tensor>& weights,
                                                         const std::vector<at::Tensor>& biases, bool need_backward) {
  COTUNE_CHECK(!weights.empty());
  int64_t out_features = 0;
  bool in_panels = weights.front().size(1) % kernels::PackedMatrix::panel_columns == 0;
  for (const at::Tensor& weight : weights) {
    out_features += weight.size(0);
    in_panels = in_panels && weight.size(0) % kernels::PackedMatrix::panel_columns == 0;
  }
  at::Tensor bias;
  if (!biases.empty()) bias = biases.size() == 1 ? biases.front() : at::cat(biases);
  if (in_panels && use_kernels(weights.front())) {
    return std::make_shared<PackedProduct>(weights, std::move(bias), out_features, need_backward);
  }
  at::Tensor weight = weights.size() == 1 ? weights.front() : at::cat(weights);
  return std::make_shared<DenseProduct>(std::move(weight), std::move(bias));
}

std::shared_ptr<const FrozenProduct> make_unwritten_product(const ProductOutline& outline, WeightForm form) {
  if (outline.packed) return std::make_shared<PackedProduct>(outline, form);
  const at::TensorOptions options = at::TensorOptions().dtype(outline.compute).device(outline.device);
  return std::make_shared<DenseProduct>(at::empty({outline.out_features, outline.in_features}, options), outline.bias);
}

}  // namespace cotune
