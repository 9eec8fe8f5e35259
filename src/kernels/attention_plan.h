/// How the work of an attention call is cut into tasks for threads. Pure; the cuts never change a result's bits.
///
/// Query blocks (32 tokens) and key blocks (64 tokens) are numbered by position in the row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace cotune::kernels {

constexpr int64_t attention_query_block = 32;
constexpr int64_t attention_key_block = 64;

struct BlockRange {
  int64_t begin = 0;
  int64_t end = 0;

  bool operator==(const BlockRange&) const = default;
};

/// One key/value head of one segment: these query blocks against these key blocks (as far as causality lets them).
struct AttentionTask {
  int64_t segment = 0;
  int64_t kv_head = 0;
  BlockRange query_blocks;
  BlockRange key_blocks;
  bool query_gradient = false;  ///< backward: write dq of the query blocks; the key blocks are all that they see
  bool kv_gradient = false;     ///< backward: write dk, dv of the key blocks; the query blocks are all that see them
  int64_t cost = 0;             ///< pairs of blocks

  bool operator==(const AttentionTask&) const = default;
};

/// The blocks that hold the segment's queries, and the keys that they see.
BlockRange query_blocks_of(const AttentionSegment& segment);
BlockRange key_blocks_of(const AttentionSegment& segment);

/// Forward tasks, longest first. Rows are cut by query blocks where whole rows would not keep the threads busy.
std::vector<AttentionTask> plan_attention_forward(const AttentionShape& shape,
                                                  std::span<const AttentionSegment> segments, int64_t thread_count);

/// Backward tasks, longest first. A whole (segment, head) computes the scores once for dq, dk and dv (5 products). Where
/// that would leave threads idle it is cut into tasks for dq by query blocks and for dk, dv by key blocks (7 products).
std::vector<AttentionTask> plan_attention_backward(const AttentionShape& shape,
                                                   std::span<const AttentionSegment> segments, int64_t thread_count);

}  // namespace cotune::kernels
