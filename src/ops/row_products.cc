#include "ops/row_products.h"

#include <ATen/ATen.h>

#include "ops/aten_products.h"

namespace cotune {
namespace {

constexpr int64_t fewest_rows = 16;
constexpr int64_t rows_of_a_block = 4;  // in f64
constexpr int64_t block_columns = 32;

/// So many that each has the bits that it has among any others.
int64_t rows_computed(const at::Tensor& x) {
  const int64_t rows = x.size(0);
  if (!x.is_cpu() || rows == 0) return rows;
  if (rows < fewest_rows) return fewest_rows;
  return x.scalar_type() == at::kDouble ? (rows + rows_of_a_block - 1) / rows_of_a_block * rows_of_a_block : rows;
}

/// a with rows_computed rows and, in bf16, zeros behind rows that do not end with a block.
at::Tensor separated(const at::Tensor& a) {
  const int64_t rows = rows_computed(a), columns = a.size(1);
  const bool apart = a.is_cpu() && a.scalar_type() == at::kBFloat16 && columns % block_columns != 0;
  if (rows == a.size(0) && !apart) return a;
  const int64_t stride = apart ? (columns + block_columns - 1) / block_columns * block_columns : columns;
  const at::Tensor spaced = at::zeros({rows, stride}, a.options()).narrow(1, 0, columns);
  spaced.narrow(0, 0, a.size(0)).copy_(a);
  return spaced;
}

}  // namespace

at::Tensor row_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias) {
  const at::Tensor rows = separated(a);
  const at::Tensor product = aten_product(rows, b, bias);
  return rows.size(0) > a.size(0) ? product.narrow(0, 0, a.size(0)).clone() : product;
}

}  // namespace cotune
