/// Matrix products by ATen whose rows do not know of each other: a row of a job has the same bits whatever else is in the
/// microbatch. Two habits of ATen stand against that:
///   * few rows are computed with other code than many (in f32, up to 8 rows or, on AMD processors, 11, in another order of
///     summation), and there in f64 the rows beyond a multiple of 4;
///   * oneDNN's AMX products in bf16 read a row in blocks of 32 columns, beyond its end into the next row, and multiply
///     what they find by zero: a NaN or infinity there becomes this row's.
/// So these are computed among rows of zeros, and bf16 rows of other lengths are moved apart by zeros; on the CPU only.
/// Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>

namespace cotune {

/// a·b (+ bias), a [rows, k], b [k, n], bias [n] or undefined. Contiguous.
at::Tensor row_product(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias = {});

}  // namespace cotune
