#include "train/divided_memory.h"

namespace cotune {

void set_division(MemoryFacts& facts, const Parallel& parallel, std::span<const PipelineLayout> process_layouts) {
  facts.ranks = parallel.ranks();
  if (parallel.replicas.size() == 1) {
    facts.tensor_parallel = parallel.replicas.front().tensor;
    if (!process_layouts.empty()) facts.process_stages = process_layouts.front().stages;
    return;
  }
  for (size_t i = 0; i < parallel.replicas.size(); ++i) {
    const ReplicaDegrees& degrees = parallel.replicas[i];
    facts.replicas.push_back({degrees.ranks(), degrees.tensor, {}});
    if (!process_layouts.empty()) facts.replicas.back().process_stages = process_layouts[i].stages;
  }
}

}  // namespace cotune
