/// Rows of a weight with an adapter's changes in them.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "adapter/weight_changes.h"

namespace cotune {

/// Values that are formed at a time, at most.
inline constexpr int64_t merged_block_values = int64_t{4} << 20;

/// Rows [begin, begin + count) of `stored`, the weight `name` or a view of its file, in `dtype`: as they are, or with the changes added
/// in f64 and then rounded (to bf16 and f16 by way of f32). Throws UserError where `dtype` cannot hold a value that is changed or
/// converted, or where it is not finite.
at::Tensor merged_rows(const at::Tensor& stored, const WeightChanges& changes, const std::string& name, int64_t begin, int64_t count,
                       at::ScalarType dtype);

}  // namespace cotune
