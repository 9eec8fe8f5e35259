#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace cotune {

/// Σ over all tensors of their elements' squares, in f64, as a scalar on their device: infinite or NaN exactly where an element
/// is, as long as f64 holds the squares. Tensors contiguous, at least one.
at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors);

}  // namespace cotune
