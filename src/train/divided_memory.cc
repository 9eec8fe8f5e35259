#include "train/divided_memory.h"

#include <algorithm>

#include "schedule/pipeline/clocks.h"
#include "schedule/pipeline/rank_place.h"
#include "schedule/pipeline/weight_copies.h"

namespace cotune {

std::vector<StageShape> shapes_of_ranks(const PipelineLayout& layout) {
  std::vector<StageShape> ranks(static_cast<size_t>(layout.rank_count()), {.has_embedding = false, .has_head = false});
  for (size_t s = 0; s < layout.stages.size(); ++s) {
    const StageShape& stage = layout.stages[s];
    StageShape& rank = ranks[static_cast<size_t>(layout.stage_rank[s])];
    if (rank.last_layer == 0) rank.first_layer = rank.last_layer = stage.first_layer;
    rank.last_layer += stage.last_layer - stage.first_layer;
    rank.has_embedding = rank.has_embedding || stage.has_embedding;
    rank.has_head = rank.has_head || stage.has_head;
    rank.tensor_parallel = stage.tensor_parallel;
    rank.is_sequence_parallel = stage.is_sequence_parallel;
  }
  return ranks;
}

int64_t weight_bytes_of_rank(const ModelConfig& config, std::span<const PipelineLayout> layouts, int32_t rank, const WeightForms& forms) {
  const RankPlace place = place_of_rank(layouts, rank);
  const PipelineLayout& layout = layouts[place.replica];
  const StageShape stage = shapes_of_ranks(layout)[static_cast<size_t>(layout.place_of(place.worker))];
  return held_weight_bytes(config, stage, forms, static_cast<int64_t>(replicas_with_weights_of(layouts, place.replica).size()));
}

void set_division(MemoryFacts& facts, const Parallel& parallel, RankOrder order, Interleave interleave,
                  std::span<const PipelineLayout> process_layouts) {
  facts.replicas.clear();
  facts.tensor_parallel = facts.clock_microbatches = 1;
  facts.is_sequence_parallel = false;
  facts.rank_order = order;
  facts.ranks = parallel.ranks();
  facts.interleaves = std::ranges::any_of(parallel.replicas, [](const ReplicaDegrees& each) { return each.stages_per_rank > 1; });
  const auto may_interleave = [](const ReplicaDegrees& each) { return each.tensor > 1 && !each.is_sequence_parallel; };
  if (interleave != Interleave::never && std::ranges::any_of(parallel.replicas, may_interleave)) facts.clock_microbatches = most_in_a_clock;
  if (parallel.replicas.size() == 1) {
    facts.tensor_parallel = parallel.replicas.front().tensor;
    facts.is_sequence_parallel = parallel.replicas.front().is_sequence_parallel;
  } else {
    for (const ReplicaDegrees& degrees : parallel.replicas) {
      facts.replicas.push_back({degrees.ranks(), degrees.tensor, {}, degrees.is_sequence_parallel});
    }
  }
  if (!process_layouts.empty()) set_process_stages(facts, process_layouts);
}

void set_process_stages(MemoryFacts& facts, std::span<const PipelineLayout> layouts) {
  if (facts.replicas.empty()) facts.process_stages = shapes_of_ranks(layouts.front());
  for (size_t i = 0; i < facts.replicas.size(); ++i) facts.replicas[i].process_stages = shapes_of_ranks(layouts[i]);
}

MemoryFacts facts_of_rank(MemoryFacts facts, size_t replica, size_t place, int64_t weight_bytes) {
  facts.weight_bytes = weight_bytes;
  if (facts.replicas.empty()) {
    facts.process_stages = {facts.process_stages.at(place)};
    return facts;
  }
  MemoryFacts::Replica own = facts.replicas.at(replica);
  own.process_stages = {own.process_stages.at(place)};
  std::ranges::fill(facts.replicas, own);
  return facts;
}

}  // namespace cotune
