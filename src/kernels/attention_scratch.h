/// What tasks of attention work in, in words of 32 bits. Pure.
#pragma once

#include <cstdint>

#include "kernels/attention.h"

namespace cotune::kernels {

/// Sizes of the operands of one key/value head: multiples of 16, so that operands which follow one another stay aligned.
struct AttentionWords {
  int64_t padded = 0;       ///< of a head, up to a multiple of sixteen
  int64_t key_rows = 0;     ///< a block of keys or values, [keys][padded]
  int64_t key_columns = 0;  ///< the same for sums over keys, [head_dim][words of keys]
  int64_t accumulator = 0;  ///< f32 gradients of a block of keys or values, [keys][head_dim]
  int64_t query_rows = 0;   ///< a block of queries of one head, [padded][queries]
  int64_t query_pairs = 0;  ///< the same for sums over queries, [words of queries][head_dim]
  int64_t query_sums = 0;   ///< f32 sums of a block of queries, [head_dim][queries]
  int64_t scores = 0;       ///< of a block of queries and one of keys, whatever a word holds
  int64_t query_head = 0;   ///< all that the backward pass has of a block of queries of one head, scores apart
  int64_t group = 0;        ///< query heads

  /// All of a task with so many blocks of keys.
  int64_t of_forward(int64_t key_blocks) const;
  int64_t of_backward(int64_t key_blocks) const;
};

/// elements_per_word: attention_elements_per_word of the kernels that work in it.
AttentionWords attention_words(int64_t elements_per_word, const AttentionShape& shape);

}  // namespace cotune::kernels
