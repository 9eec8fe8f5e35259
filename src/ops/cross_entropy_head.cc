#include "ops/cross_entropy_head.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/cross_entropy.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"

namespace cotune {

HeadResult cross_entropy_head(const at::Tensor& hidden, const at::Tensor& labels, const at::Tensor& row_scale,
                              const FrozenProduct& output, bool want_gradient, int64_t workspace_bytes) {
  const int64_t rows = hidden.size(0);
  const at::ScalarType compute = hidden.scalar_type(), wide = accumulation_dtype(compute);
  HeadResult result{at::empty({rows}, hidden.options().dtype(wide)), {}, {}};
  if (want_gradient) {
    result.gradient = at::empty_like(hidden);
  } else {
    result.predictions = at::empty({rows}, hidden.options().dtype(at::kLong));
  }
  GpuKernels* gpu = gpu_kernels_for(hidden);
  const int64_t row_bytes = output.out_features() * static_cast<int64_t>(hidden.element_size());
  const int64_t chunk = std::max<int64_t>(64, workspace_bytes / row_bytes / 64 * 64);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    at::Tensor logits = output.forward(hidden.narrow(0, begin, count), {});
    const at::Tensor chunk_labels = labels.narrow(0, begin, count);
    const at::Tensor chunk_scale = row_scale.narrow(0, begin, count);
    at::Tensor losses = result.losses.narrow(0, begin, count);
    at::Tensor predictions;
    if (!want_gradient) {
      predictions = result.predictions.narrow(0, begin, count);
      if (gpu == nullptr) predictions.copy_(logits.argmax(1));
    }
    if (gpu != nullptr) {
      gpu->softmax_cross_entropy(gpu_type(compute), logits.const_data_ptr(), count, logits.size(1),
                                 chunk_labels.const_data_ptr<int32_t>(), chunk_scale.const_data_ptr<float>(),
                                 losses.mutable_data_ptr<float>(), want_gradient ? logits.mutable_data_ptr() : nullptr,
                                 want_gradient ? nullptr : predictions.mutable_data_ptr<int64_t>());
    } else if (use_kernels(hidden)) {
      const kernels::DType dtype = kernel_dtype(compute);
      if (want_gradient) {
        kernels::softmax_cross_entropy(dtype, logits.const_data_ptr(), logits.stride(0), count, logits.size(1),
                                       chunk_labels.const_data_ptr<int32_t>(), chunk_scale.const_data_ptr<float>(),
                                       losses.mutable_data_ptr<float>(), dtype, logits.mutable_data_ptr(),
                                       logits.stride(0));
      } else {
        kernels::softmax_cross_entropy_loss(dtype, logits.const_data_ptr(), logits.stride(0), count, logits.size(1),
                                            chunk_labels.const_data_ptr<int32_t>(), losses.mutable_data_ptr<float>());
      }
    } else {
      at::Tensor scores = logits.to(wide);
      const at::Tensor index = chunk_labels.to(at::kLong).unsqueeze(1);
      const at::Tensor normaliser = scores.logsumexp(-1, true);
      losses.copy_((normaliser - scores.gather(1, index)).squeeze(1));
      if (want_gradient) {
        at::Tensor gradient = (scores - normaliser).exp();
        gradient.scatter_add_(1, index, at::full_like(index, -1, gradient.options()));
        logits = gradient.mul_(chunk_scale.unsqueeze(1)).to(compute);
      }
    }
    if (want_gradient) result.gradient.narrow(0, begin, count).copy_(output.backward(logits, {}));
  }
  return result;
}

at::Tensor output_logits(const at::Tensor& hidden, const FrozenProduct& output) { return output.forward(hidden, {}); }

}  // namespace cotune
