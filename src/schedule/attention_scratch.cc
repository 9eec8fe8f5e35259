#include "schedule/attention_scratch.h"

#include "schedule/memory_shapes.h"

namespace cotune {

int64_t attention_scratch_bytes(const ModelConfig& config, int64_t row_tokens, Direction direction, const MemoryFacts& facts) {
  if (!attends_with_kernels(config, facts)) return 0;
  constexpr int64_t keys = 64, queries = 32, word_bytes = 4;  // of a block
  const int64_t head = config.head_dim, values = facts.attention_word_values, padded = round_up(head / values, 16);
  const int64_t rows = keys * padded, columns = head * keys / values, scores = keys * queries, blocks = divide_up(row_tokens, keys);
  if (direction != Direction::backward) {
    return word_bytes * (blocks * (rows + columns) + queries * padded + 2 * scores + queries * head);
  }
  const int64_t of_query_head = 2 * queries * padded + 2 * (queries / values) * head + queries * head + 2 * queries + 2 * scores;
  const int64_t of_block = 2 * rows + columns + 2 * keys * head;
  return word_bytes * (blocks * of_block + config.head_count / config.kv_head_count * of_query_head + 3 * scores);
}

}  // namespace cotune
