#include "engine/rank_results.h"

#include <ATen/ATen.h>

namespace cotune {

std::vector<LayerRange> layers_of(const PipelineLayout& layout, int32_t rank) {
  std::vector<LayerRange> layers;
  for (size_t i = 0; i < layout.stages.size(); ++i) {
    if (layout.stage_rank[i] == layout.place_of(rank)) layers.push_back({layout.stages[i].first_layer, layout.stages[i].last_layer});
  }
  return layers;
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

std::vector<JobRound> merged_rounds(size_t top, std::span<const std::vector<JobRound>> by_rank) {
  std::vector<JobRound> merged = by_rank[top];
  for (size_t i = 0; i < merged.size(); ++i) {
    for (const std::vector<JobRound>& own : by_rank) {
      if (!merged[i].failure.empty() || own[i].failure.empty()) continue;
      merged[i].failure = own[i].failure;
      merged[i].stepped = false;
    }
  }
  return merged;
}

void add_replicas(std::span<const ReplicaResult> replicas, size_t row_count, JobRound& result) {
  result.loss_sum = 0;
  result.row_predicted.assign(result.purpose == RoundPurpose::evaluate ? row_count : 0, 1);
  for (const ReplicaResult& replica : replicas) {
    result.loss_sum += replica.round->loss_sum;
    for (size_t i = 0; i < replica.round->row_predicted.size(); ++i) {
      result.row_predicted[static_cast<size_t>(replica.rows[i])] = replica.round->row_predicted[i];
    }
  }
}

}  // namespace cotune
