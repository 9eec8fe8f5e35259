#pragma once

#include <ATen/core/Tensor.h>

#include "jobs/job.h"

namespace cotune {

/// f(z) elementwise, any shape, contiguous; accumulation dtype inside, rounded once. An element depends on itself alone:
/// its place in the tensor does not change its bits (ATen's vectorised tails do not promise that).
at::Tensor activate(Activation activation, const at::Tensor& z);

/// d ⊙ f'(z).
at::Tensor activate_backward(Activation activation, const at::Tensor& d, const at::Tensor& z);

/// Both by tensor operations on the device of z: what the functions above do on a GPU.
at::Tensor activate_by_operations(Activation activation, const at::Tensor& z);
at::Tensor activate_backward_by_operations(Activation activation, const at::Tensor& d, const at::Tensor& z);

}  // namespace cotune
