#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "jobs/job.h"

namespace cotune {

/// One job's part of a grouped activation, z [rows, columns] contiguous.
struct ActivationGroup {
  Activation activation = Activation::relu;
  at::Tensor z;
  at::Tensor bias = {};      ///< [≤ columns] accumulation dtype: added to the first columns of z, which keeps it, before f; or undefined
  at::Tensor gradient = {};  ///< of f(z), like z: where activate_backward is asked
};

/// f(z) of every group, elementwise, in one call; accumulation dtype inside, rounded once. On the CPU, and by a
/// GPU's kernels, an element depends on itself alone: its place in the tensor does not change its bits (ATen's vectorised tails
/// do not promise that).
std::vector<at::Tensor> activate(const std::vector<ActivationGroup>& groups);

/// gradient ⊙ f'(z) of every group; no bias.
std::vector<at::Tensor> activate_backward(const std::vector<ActivationGroup>& groups);

/// Both by tensor operations on the device of z, one sequence per function that the groups name: what the above do on a GPU
/// whose kernels do not take z (f64).
std::vector<at::Tensor> activate_by_operations(const std::vector<ActivationGroup>& groups);
std::vector<at::Tensor> activate_backward_by_operations(const std::vector<ActivationGroup>& groups);

}  // namespace cotune
