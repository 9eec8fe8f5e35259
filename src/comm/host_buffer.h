#pragma once

#include <ATen/core/Tensor.h>

namespace cotune {

/// Memory of the host for what an exchange between ranks sends or receives, uninitialised. No limit on tensors counts it: an
/// exchange that has begun must not end for want of memory on one side alone.
at::Tensor host_buffer(at::IntArrayRef sizes, at::ScalarType dtype);

}  // namespace cotune
