#include "ops/sharded_head.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/cross_entropy.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"

namespace cotune {
namespace {

/// What a rank knows of a chunk by its own logits.
struct Local {
  at::Tensor column;      ///< int64 [rows, 1]: the label's, or 0 where another rank has it
  at::Tensor is_own;      ///< [rows, 1] accumulation dtype: 1 where the label is here
  at::Tensor score;       ///< [rows, 1]: of that column
  at::Tensor normaliser;  ///< [rows]: log Σ exp of the scores here
};

Local look(const at::Tensor& logits, const at::Tensor& labels, int64_t first_token, at::ScalarType wide) {
  Local local;
  const at::Tensor index = labels.to(at::kLong).unsqueeze(1) - first_token;
  const at::Tensor own = index.ge(0).logical_and_(index.lt(logits.size(1)));
  local.column = index.masked_fill(own.logical_not(), 0);
  local.is_own = own.to(wide);
  local.score = logits.gather(1, local.column).to(wide);
  if (use_kernels(logits)) {
    const at::Tensor columns = local.column.squeeze(1).to(at::kInt).contiguous();
    local.normaliser = at::empty({logits.size(0)}, logits.options().dtype(wide));
    kernels::softmax_cross_entropy_loss(
        kernel_dtype(logits.scalar_type()), logits.const_data_ptr(), logits.stride(0), logits.size(0),
        logits.size(1), columns.const_data_ptr<int32_t>(), local.normaliser.mutable_data_ptr<float>());
    local.normaliser.add_(local.score.squeeze(1));
  } else {
    local.normaliser = logits.to(wide).logsumexp(1);
  }
  return local;
}

/// logits := scale · (softmax over all ranks − onehot) of the tokens here.
void put_gradient(at::Tensor& logits, const Local& local, const at::Tensor& whole, const at::Tensor& scale) {
  const at::ScalarType wide = whole.scalar_type();
  const at::Tensor at_column =
      (local.score - whole.unsqueeze(1)).exp_().sub_(local.is_own).mul_(scale.unsqueeze(1));
  if (use_kernels(logits)) {
    // The share of these tokens times the softmax among them; the kernel's onehot is then written over.
    const at::Tensor share = (local.normaliser - whole).exp_().mul_(scale).contiguous();
    const at::Tensor columns = local.column.squeeze(1).to(at::kInt).contiguous();
    const at::Tensor unused = at::empty_like(local.normaliser);
    const kernels::DType dtype = kernel_dtype(logits.scalar_type());
    kernels::softmax_cross_entropy(dtype, logits.const_data_ptr(), logits.stride(0), logits.size(0),
                                   logits.size(1), columns.const_data_ptr<int32_t>(),
                                   share.const_data_ptr<float>(), unused.mutable_data_ptr<float>(), dtype,
                                   logits.mutable_data_ptr(), logits.stride(0));
  } else {
    logits =
        logits.to(wide).sub_(whole.unsqueeze(1)).exp_().mul_(scale.unsqueeze(1)).to(logits.scalar_type());
  }
  logits.scatter_(1, local.column, at_column.to(logits.scalar_type()));
}

}  // namespace

int64_t sharded_head_rows(int64_t largest_share, at::ScalarType compute, at::Device device,
                          int64_t workspace_bytes) {
  const auto element = static_cast<int64_t>(c10::elementSize(compute));
  const auto wide = static_cast<int64_t>(c10::elementSize(accumulation_dtype(compute)));
  const int64_t row_bytes = largest_share * (device.is_cpu() ? element : element + wide);
  return std::max<int64_t>(64, workspace_bytes / row_bytes / 64 * 64);
}

HeadResult sharded_cross_entropy_head(const at::Tensor& hidden, const at::Tensor& labels,
                                      const at::Tensor& row_scale, const FrozenProduct& output,
                                      const HeadShard& shard, bool want_gradient, int64_t workspace_bytes) {
  COTUNE_CHECK(output.out_features() <= shard.largest_share, "{} tokens of at most {}", output.out_features(), shard.largest_share);
  const int64_t rows = hidden.size(0), ranks = shard.count;
  const at::ScalarType wide = accumulation_dtype(hidden.scalar_type());
  HeadResult result{at::empty({rows}, hidden.options().dtype(wide)), {}, {}};
  at::Tensor gradient;
  if (want_gradient) {
    gradient = at::empty(hidden.sizes(), hidden.options().dtype(wide));
  } else {
    result.predictions = at::empty({rows}, hidden.options().dtype(at::kLong));
  }
  const int64_t chunk = sharded_head_rows(shard.largest_share, hidden.scalar_type(), hidden.device(), workspace_bytes);
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    at::Tensor logits = output.forward(hidden.narrow(0, begin, count), {});
    const Local local = look(logits, labels.narrow(0, begin, count), shard.first_token, wide);
    // Slots: the ranks' normalisers, the label's score; to predict also the ranks' highest scores and their
    // tokens.
    at::Tensor slots = at::zeros({want_gradient ? ranks + 1 : 3 * ranks + 1, count}, local.score.options());
    slots[shard.index].copy_(local.normaliser);
    slots[ranks].copy_(local.score.mul(local.is_own).squeeze(1));
    if (!want_gradient) {
      const auto [best, column] = logits.max(1);
      slots[ranks + 1 + shard.index].copy_(best);
      slots[2 * ranks + 1 + shard.index].copy_(column + shard.first_token);
    }
    shard.all_reduce(slots);
    const at::Tensor whole = slots.narrow(0, 0, ranks).logsumexp(0);
    result.losses.narrow(0, begin, count).copy_(whole - slots[ranks]);
    if (want_gradient) {
      put_gradient(logits, local, whole, row_scale.narrow(0, begin, count));
      gradient.narrow(0, begin, count).copy_(output.backward(logits, {}));
    } else {
      const at::Tensor likeliest = slots.narrow(0, ranks + 1, ranks).argmax(0, true);
      const at::Tensor tokens = slots.narrow(0, 2 * ranks + 1, ranks).gather(0, likeliest).squeeze(0);
      result.predictions.narrow(0, begin, count).copy_(tokens);
    }
  }
  if (want_gradient) result.gradient = shard.sum_gradients(gradient).to(hidden.scalar_type());
  return result;
}

}  // namespace cotune
