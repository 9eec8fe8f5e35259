#pragma once

#include <functional>

#include "ops/cross_entropy_head.h"

namespace cotune {

/// The tokens that this rank's part of the output head scores: [first_token, first_token + out_features).
struct HeadShard {
  int64_t index = 0, count = 1;  ///< the rank among those of its tensor-parallel group
  int64_t first_token = 0;
  int64_t largest_share = 0;  ///< out_features of the rank of the group that scores the most tokens: chunks are of equal rows on all of them
  std::function<void(at::Tensor&)>
      all_reduce;  ///< values := sum over the group's ranks, equal bits on all of them
  /// The sum of the hidden states' gradients, of the rows that this rank goes on with.
  std::function<at::Tensor(const at::Tensor&)> sum_gradients;
};

/// cross_entropy_head where the vocabulary is divided among ranks (Shoeybi et al. 2019, §3): no rank sees
/// another's logits. For each chunk of rows the ranks exchange, in one all-reduce of zero-filled slots, their
/// log-sum-exps and the label's score; with log Σ exp of these every rank forms its part of softmax − onehot.
/// sum_gradients adds the hidden states' gradients of all rows, in the accumulation dtype.
/// Results have equal bits on all ranks; predictions are the first of the likeliest.
HeadResult sharded_cross_entropy_head(const at::Tensor& hidden, const at::Tensor& labels,
                                      const at::Tensor& row_scale, const FrozenProduct& output,
                                      const HeadShard& shard, bool want_gradient, int64_t workspace_bytes);

/// Rows of a chunk, for a group of which no rank has more tokens of the vocabulary; each chunk takes an exchange of its own, of equal
/// size on all ranks. So it follows from the kind of device, and not from the kernels that a rank's host has for it. On a CPU
/// the workspace is for logits in the compute dtype, as our kernels hold them; elsewhere for their wide form too.
int64_t sharded_head_rows(int64_t largest_share, at::ScalarType compute, at::Device device,
                          int64_t workspace_bytes);

}  // namespace cotune
