#include "kernels/attention_scratch.h"

#include "kernels/attention_plan.h"

namespace cotune::kernels {

int64_t AttentionWords::of_forward(int64_t key_blocks) const {
  return key_blocks * (key_rows + key_columns) + query_rows + 2 * scores + query_sums;
}

int64_t AttentionWords::of_backward(int64_t key_blocks) const {
  return key_blocks * (2 * key_rows + key_columns + 2 * accumulator) + group * (query_head + 2 * scores) + 3 * scores;
}

AttentionWords attention_words(int64_t elements_per_word, const AttentionShape& shape) {
  constexpr int64_t keys = attention_key_block, queries = attention_query_block;
  AttentionWords words;
  words.padded = (shape.head_dim / elements_per_word + 15) / 16 * 16;
  words.key_rows = keys * words.padded;
  words.key_columns = shape.head_dim * keys / elements_per_word;
  words.accumulator = keys * shape.head_dim;
  words.query_rows = words.padded * queries;
  words.query_pairs = queries / elements_per_word * shape.head_dim;
  words.query_sums = shape.head_dim * queries;
  words.scores = keys * queries;
  words.query_head = 2 * words.query_rows + 2 * words.query_pairs + words.query_sums + 2 * queries;
  words.group = shape.heads / shape.kv_heads;
  return words;
}

}  // namespace cotune::kernels
