/// Matrix products by ATen whose rows do not know of each other. ATen computes a few rows at a time with other code than
/// many (in f32, below 8 rows, another order of summation), so few rows are computed among rows of zeros: a row of a
/// job then has the same bits whatever else is in the microbatch. Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>

namespace cotune {

/// a·b (+ bias), a [rows, k], b [k, n], bias [n] or undefined. Contiguous.
at::Tensor row_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});

/// y += a·b, y [rows, n], strides as they are.
void add_row_product(at::Tensor& y, const at::Tensor& a, const at::Tensor& b);

}  // namespace cotune
