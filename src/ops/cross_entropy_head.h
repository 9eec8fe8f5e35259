#pragma once

#include <ATen/core/Tensor.h>

#include "ops/frozen_product.h"

namespace cotune {

/// Losses of labelled rows and, where asked for, the gradient of the hidden states.
struct HeadResult {
  at::Tensor losses;    ///< [rows] accumulation dtype: −log softmax(h·Wᵀ)[label], unscaled
  at::Tensor gradient;  ///< [rows, hidden] compute dtype: row_scale · (softmax − onehot)·W; undefined when not asked for
  at::Tensor predictions;  ///< int64 [rows]: the likeliest token; only without gradient
};

/// Output head with cross-entropy, in chunks of rows so that the logits never exist as a whole (Liger, Hsu et al. 2024).
/// hidden [rows, hidden] (after the final norm), labels int32 [rows], row_scale [rows] accumulation dtype: the weight of
/// each row in its job's loss, 1 / (labelled tokens of the job's batch). A row's result depends on that row alone.
/// The chunk is the largest that keeps the logits within `workspace_bytes` (at least 64 rows).
HeadResult cross_entropy_head(const at::Tensor& hidden, const at::Tensor& labels, const at::Tensor& row_scale,
                              const FrozenProduct& output, bool want_gradient, int64_t workspace_bytes);

/// Logits of the given rows, compute dtype: for generation.
at::Tensor output_logits(const at::Tensor& hidden, const FrozenProduct& output);

}  // namespace cotune
