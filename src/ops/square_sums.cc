#include "ops/square_sums.h"

#include <ATen/ATen.h>

#include "ops/backend.h"

namespace cotune {

at::Tensor sum_of_squares(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& first = tensors.front();
  GpuKernels* kernels = first.scalar_type() == at::kFloat ? gpu_kernels_for(first) : nullptr;
  if (kernels == nullptr) return at::stack(at::_foreach_norm(tensors, 2, at::kDouble)).square().sum();
  std::vector<GpuArray> arrays;
  for (const at::Tensor& tensor : tensors) arrays.push_back({tensor.const_data_ptr<float>(), tensor.numel()});
  const at::Tensor sums = at::empty({static_cast<int64_t>(arrays.size())}, first.options().dtype(at::kDouble));
  kernels->square_sums(arrays, sums.mutable_data_ptr<double>());
  return sums.sum();
}

}  // namespace cotune
