#include "schedule/memory/weight_memory.h"

#include <algorithm>
#include <array>
#include <utility>

#include "model/config/tensor_shard.h"
#include "schedule/memory/memory_shapes.h"

namespace cotune {
namespace {

constexpr int64_t forms_of_layer = 8;    // four products in two directions, each in slices of whole
constexpr int64_t slice_alignment = 64;  // bytes

}  // namespace

int64_t predict_weight_bytes(const ModelConfig& config, const MemoryFacts& facts, int64_t positions) {
  // Parts of layers that are in one process take together what the whole takes.
  const int64_t parts = facts.tensor_parallel / parts_here(facts);
  const ModelConfig own = sharded_config(config, parts);
  const int64_t vocabulary = divide_up(config.vocabulary_size, parts);
  const int64_t hidden = own.hidden_size, query = own.query_size(), key_value = own.key_value_size();
  const int64_t qkv = query + 2 * key_value;
  const int64_t a = accumulation_size(facts);
  int64_t products = 0, gathered = 0;  // of a layer
  const std::array<std::pair<int64_t, int64_t>, 4> sizes{
      {{hidden, qkv}, {query, hidden}, {hidden, 2 * own.intermediate_size}, {own.intermediate_size, hidden}}};
  for (const auto& [in, out] : sizes) {
    const FrozenBytes product = frozen_bytes(in, out, facts);
    products += product.all;
    gathered = std::max(gathered, 2 * product.form);
  }
  const int64_t vectors = 2 * hidden * a + (own.qkv_bias ? qkv * a : 0);
  int64_t dearest = 0;
  for (const StageShape& stage : stages_here(config, facts)) {
    const int64_t layers = stage.last_layer - stage.first_layer;
    const bool head_embeds = config.tied_embeddings && stage.has_head;
    const int64_t embedding = stage.has_embedding && !head_embeds ? vocabulary * hidden * facts.element_size : 0;
    int64_t bytes = divide_up(layers * products + embedding, facts.weight_copies) + layers * vectors;
    const int64_t head = stage.has_head ? hidden * a + frozen_bytes(hidden, vocabulary, facts).all : 0;
    if (facts.weight_copies > 1) {
      const int64_t answers = embedding > 0 ? (facts.weight_copies - 1) * embedding_rows_at_once * hidden * facts.element_size : 0;
      bytes += gathered + answers + layers * forms_of_layer * slice_alignment;
      bytes = std::max(bytes, embedding + divide_up(embedding, facts.weight_copies));  // while it is cut, before the layers come
    }
    bytes += head;
    dearest = std::max(dearest, bytes);
  }
  return dearest + parts_here(facts) * std::min(positions, config.context_length) * config.head_dim * a;
}

int64_t positions_of(std::span<const JobFootprint> jobs) {
  int64_t longest = 0;
  for (const JobFootprint& job : jobs) longest = std::max({longest, job.longest_row, job.longest_eval_row});
  return longest;
}

}  // namespace cotune
