/// Causal grouped-query attention over ragged segments (Vaswani et al. 2017; Ainslie et al. 2023), after the rotary
/// embedding, with the online softmax and the recomputing backward pass of FlashAttention-2 (Dao 2023).
///
///   s_ij = scale · q_i·k_j  for j ≤ i (positions in the row),  p_ij = exp(s_ij − lse_i),  out_i = Σ_j p_ij v_j
///   delta_i = dout_i·out_i,  ds_ij = p_ij (dout_i·v_j − delta_i)
///   dq_i = scale · Σ_j ds_ij k_j,  dk_j = scale · Σ_i ds_ij q_i,  dv_j = Σ_i p_ij dout_i
///
/// Query head h reads key/value head h / (heads / kv_heads); dk and dv are sums over the query heads of the group.
///
/// Bits: blocks of 32 queries and 64 keys are aligned to positions of the row. A query takes its key blocks in ascending
/// order; a key takes the query blocks in descending order, and within a block its query heads in ascending order, into
/// f32 accumulators that are carried exactly. So out, lse, dq, dk, dv of a row do not depend on what else is in the call,
/// on the number of threads, or on where the row is cut into chunks, as long as the cuts are multiples of 64 tokens
/// (other cuts are correct too, but the roundings differ).
///
/// Runs on AVX2, AVX-512, AVX-512 BF16 or AMX (bf16), chosen by kernels/isa.h; InternalError without AVX2 and FMA.
/// Any row length; head_dim 16 to 128, a multiple of 16 (multiples of 32 are the fast case on AMX).
/// A call takes what its threads work in from its caller: every one of them attention_forward_scratch_bytes or
/// attention_backward_scratch_bytes, which grow with the longest row.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/matrix.h"

namespace cotune::kernels {

/// Shape of the heads. Columns of q, out, dout, dq: [heads, head_dim], contiguous within a token.
struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0;  ///< usually 1/sqrt(head_dim)
};

/// Consecutive tokens of one row: the whole row, or one chunk of a chain.
struct AttentionSegment {
  int64_t query_begin = 0;  ///< first row of this segment in q, out, dout, dq, lse
  int64_t query_count = 0;
  int64_t position = 0;     ///< tokens of the row before this segment
  /// Keys and values of the row's tokens 0 .. position + query_count - 1, rotated: [tokens, kv_heads · head_dim].
  /// For a whole row they point into qkv, for a chunk into the chain's buffer.
  const void* k = nullptr;
  const void* v = nullptr;
  int64_t kv_stride = 0;  ///< elements from one token to the next
};

/// Where the gradients of a segment's keys and values go; token t of the row is row t.
/// Exactly one of the two pairs is set.
struct AttentionKvGradient {
  /// Whole rows (position 0): written once, in the compute dtype.
  void* dk = nullptr;
  void* dv = nullptr;
  int64_t stride = 0;
  /// Chunks of a chain: [tokens, kv_heads · head_dim] contiguous, added to. Zero before the last chunk of the chain;
  /// chunks come in descending order. Rows 0 .. position + query_count - 1 are touched, and after the call rows from
  /// `position` on are final.
  float* dk_accumulator = nullptr;
  float* dv_accumulator = nullptr;
};

/// Values that a word of 32 bits holds where rows are packed: two bf16 where they are multiplied as they are, else one.
int64_t attention_elements_per_word(DType dtype);

/// Bytes that one thread of a call works in, a multiple of 64. row_tokens: of the longest row, up to the end of its segment: position +
/// query_count. Of the backward pass, with a head_dim that is a multiple of 32 and e values in a word, (12 / e + 8) · head_dim per token,
/// tokens rounded up to blocks of 64, and what does not grow with the row.
int64_t attention_forward_scratch_bytes(DType dtype, const AttentionShape& shape, int64_t row_tokens);
int64_t attention_backward_scratch_bytes(DType dtype, const AttentionShape& shape, int64_t row_tokens);

/// out [tokens, heads · head_dim] in dtype, lse [tokens, heads] f32 (natural logarithm). Strides in elements.
/// memory: where scratch for omp_get_max_threads() threads is taken from, by the calling thread, while the call runs; what it throws is thrown
/// before anything is written.
void attention_forward(DType dtype, const AttentionShape& shape, std::span<const AttentionSegment> segments,
                       const void* q, int64_t q_stride, void* out, int64_t out_stride, float* lse,
                       MemorySource memory = MemorySource::heap());

/// dq [tokens, heads · head_dim] in dtype is written; keys and values as `gradients` (one per segment) say.
/// `out` and `lse` as attention_forward left them. At most one segment of a chain per call. Gradients must not overlap q,
/// k, v, out or dout: threads still read those while others write.
void attention_backward(DType dtype, const AttentionShape& shape, std::span<const AttentionSegment> segments,
                        std::span<const AttentionKvGradient> gradients, const void* q, int64_t q_stride,
                        const void* out, int64_t out_stride, const void* dout, int64_t dout_stride, const float* lse,
                        void* dq, int64_t dq_stride, MemorySource memory = MemorySource::heap());

}  // namespace cotune::kernels
