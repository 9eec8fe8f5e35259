#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace cotune {

/// A dropout mask that is a pure function of coordinates (kernels/dropout.h gives the formula): of the site's key (job
/// seed, job step, module), each row's example key and token position, and the feature. Nothing is stored.
struct DropoutMask {
  uint64_t key = 0;
  double probability = 0;   ///< of dropping, [0, 1)
  at::Tensor example_keys;  ///< int64 [rows]
  at::Tensor positions;     ///< int32 [rows]
};

/// y = mask ⊙ x / (1 − p), rows of x and y [rows, features] contiguous in their columns; y may be x.
void apply_dropout(const DropoutMask& mask, const at::Tensor& x, at::Tensor& y);

/// dx += mask ⊙ dy / (1 − p), rounded once.
void add_dropout_gradient(const DropoutMask& mask, const at::Tensor& dy, at::Tensor& dx);

}  // namespace cotune
