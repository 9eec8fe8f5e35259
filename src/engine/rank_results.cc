#include "engine/rank_results.h"

#include <ATen/ATen.h>

#include "schedule/pipeline/rank_place.h"

namespace cotune {

std::vector<LayerRange> layers_of(const PipelineLayout& layout, int32_t rank) {
  std::vector<LayerRange> layers;
  for (size_t i = 0; i < layout.stages.size(); ++i) {
    if (layout.stage_rank[i] == layout.place_of(rank)) layers.push_back({layout.stages[i].first_layer, layout.stages[i].last_layer});
  }
  return layers;
}

std::vector<LayerRange> layers_of(std::span<const PipelineLayout> layouts, int32_t rank) {
  const auto [replica, worker] = place_of_rank(layouts, rank);
  return layers_of(layouts[replica], worker);
}

MadeSteps made_steps(const Interpreter& interpreter) {
  MadeSteps made;
  for (const auto& [step, known] : interpreter.steps()) {
    if (!known.stepped.empty()) made[step] = known.record;
  }
  return made;
}

void complete_steps(Interpreter& interpreter, const MadeSteps& made, std::span<JobRound> rounds) {
  for (JobRound& round : rounds) {
    const auto found = made.find({round.job, round.batch->step});
    if (found != made.end()) interpreter.complete_step(round, found->second);
  }
}

void clear_gradients(std::span<JobRound> rounds) {
  for (JobRound& round : rounds) {
    if (round.adapter != nullptr && !round.stepped) clear_gradients(*round.adapter);
  }
}

void clear_gradients(Adapter& adapter) {
  for (Parameter& parameter : adapter.parameters()) parameter.gradient.zero_();
}

}  // namespace cotune
