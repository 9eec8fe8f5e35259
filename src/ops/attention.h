#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace cotune {

/// Cosines and sines of rotary position embeddings, [positions, head_dim/2] each (f32, or f64 under f64).
struct RotaryTable {
  at::Tensor cosine, sine;
};
/// inverse_frequencies: radians per position of each pair of a head's dimensions (model/config/rope.h).
RotaryTable rotary_table(const std::vector<double>& inverse_frequencies, int64_t positions, at::ScalarType compute,
                         at::Device device);

/// Rotates the first `heads` heads of every row in place: HF's rotate-half convention, pairs (i, i + head_dim/2).
/// x [tokens, ≥ heads·head_dim], positions int32 [tokens]. direction −1 undoes it (the backward pass).
void rotate_in_place(at::Tensor& x, const at::Tensor& positions, const RotaryTable& table, int64_t heads,
                     int64_t head_dim, int direction);

struct AttentionShape {
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t query_columns() const { return heads * head_dim; }
  int64_t kv_columns() const { return kv_heads * head_dim; }
  int64_t qkv_columns() const { return query_columns() + 2 * kv_columns(); }
};

/// Keys and values of a chain (a row that goes through the model in several microbatches), after rotation, and the
/// gradients that later chunks have left for earlier ones. Lives from the chain's first forward to its last backward.
struct ChainCache {
  at::Tensor keys, values;                    ///< [row tokens, kv columns] compute dtype
  at::Tensor key_gradients, value_gradients;  ///< the same in the accumulation dtype; undefined until the backward
};

/// One segment: query rows [begin, begin + count) of the microbatch; `position` tokens of the same row came before.
/// Without a chain the segment is a whole row (position 0) and its keys lie in qkv.
struct AttentionSegment {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t position = 0;
  ChainCache* chain = nullptr;
};

/// Queries of a segment whose scores exist at a time where ATen's operators compute them.
inline constexpr int64_t dense_attention_queries = 128;

/// Causal grouped-query attention over ragged segments (FlashAttention's recurrence, Dao et al. 2022):
///   out = softmax(q·kᵀ/√head_dim, keys ≤ query)·v, per segment; q, k already rotated.
/// qkv [tokens, qkv columns]; out [tokens, query columns]; lse [tokens, heads] (log-sum-exp, accumulation dtype).
/// begins: int32 [segments + 1] on qkv's device, where each segment begins and the last one ends (segments follow one another);
/// undefined: made from the segments where it is needed.
/// Our kernels work in scratch that grows with threads and the longest row (kernels/attention.h) and counts as workspace.
/// Copies this segment's keys and values into its chain first. A query's result depends on its row alone, and not on
/// where the row is cut at multiples of 64 (our kernels; 1e-10 in f64 at any cut).
struct AttentionResult {
  at::Tensor out, lse;
  std::vector<at::Tensor> flash_lse;  ///< in place of lse: of every call of torch's FlashAttention (flash_attention.h)
};
AttentionResult attention(const at::Tensor& qkv, const std::vector<AttentionSegment>& segments,
                          const AttentionShape& shape, const at::Tensor& begins = {});

/// Gradient of qkv (rotated), [tokens, qkv columns]. For a chain the chunks come in reverse order; the keys' and values'
/// gradients of this chunk are complete once it is its turn and are taken from the chain's accumulators.
at::Tensor attention_backward(const at::Tensor& d_out, const at::Tensor& qkv, const AttentionResult& forward,
                              const std::vector<AttentionSegment>& segments, const AttentionShape& shape,
                              const at::Tensor& begins = {});

}  // namespace cotune
