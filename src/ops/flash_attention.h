/// Attention on a GPU by torch's FlashAttention (Dao 2023) over ragged rows. Internal to ops/: callers use attention.h.
#pragma once

#include "ops/attention.h"

namespace cotune {

/// Head dimensions that it takes are multiples of 8 up to this one: beyond, not every GPU has the backward.
inline constexpr int64_t widest_flash_head = 192;

/// Whether it takes these: bf16 on a GPU with kernels of ours.
bool takes_flash_attention(const at::Tensor& qkv, const AttentionShape& shape);

/// attention() and attention_backward() of segments whose chains hold their keys and values (and accumulators) already.
/// begins: as attention()'s. The backward is of equal bits from run to run; it leaves the gradients of a chain's keys and
/// values in its accumulators.
AttentionResult flash_attention(const at::Tensor& qkv, const std::vector<AttentionSegment>& segments,
                                const at::Tensor& begins, const AttentionShape& shape);
void flash_attention_backward(const at::Tensor& d_out, const at::Tensor& qkv, const AttentionResult& forward,
                              const std::vector<AttentionSegment>& segments, const at::Tensor& begins,
                              const AttentionShape& shape, at::Tensor& d_qkv);

}  // namespace cotune
