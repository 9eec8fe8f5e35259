#include "schedule/memory/saved_per_token.h"

#include <algorithm>

#include "schedule/memory/memory_shapes.h"
#include "schedule/operator_cost.h"

namespace cotune {
namespace {

SavedPerToken saved_per_token(const ModelConfig& config, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                              const std::vector<int64_t>& job_tokens, const MemoryFacts& facts) {
  const int64_t slices = stage.is_sequence_parallel ? stage.tensor_parallel : 1;
  MicrobatchCounts one_each{.tokens = slices, .job_tokens = job_tokens};  // so that every slice has a token
  for (int64_t& tokens : one_each.job_tokens) tokens *= slices;
  SavedPerToken saved;
  std::map<int64_t, int64_t> layers;
  for (const Operator& op : stage_operators(config, stage, adapters, Direction::forward)) {
    const int64_t bytes = divide_up(parts_here(facts) * saved_bytes(config, stage, op, one_each, facts.element_size), slices);
    saved.model += bytes;
    saved.layer = std::max(saved.layer, layers[op.layer] += bytes);
  }
  return saved;
}

void take(const SavedPerToken& saved, SavedPerToken& dearest) {
  dearest = {std::max(dearest.model, saved.model), std::max(dearest.layer, saved.layer)};
}

}  // namespace

int64_t lowest_layer(const ModelConfig& config, const JobFootprint& job) {
  int64_t lowest = config.layer_count;
  for (const AdapterShape& adapter : job.adapters) lowest = std::min(lowest, adapter.layer);
  return lowest;
}

SavedBytes::SavedBytes(const ModelConfig& config, const MemoryFacts& facts) : config_(config), facts_(facts), stages_(stages_here(config, facts)) {}

SavedPerToken SavedBytes::by_model(int64_t lowest_layer) {
  SavedPerToken dearest;
  for (const SavedPerToken& saved : frozen(lowest_layer)) take(saved, dearest);
  return dearest;
}

SavedPerToken SavedBytes::by_adapters(const JobFootprint& job) {
  std::vector<int64_t> job_tokens(static_cast<size_t>(job.job) + 1, 0);
  job_tokens.back() = 1;
  const std::vector<SavedPerToken>& without = frozen(lowest_layer(config_, job));
  SavedPerToken dearest;
  for (size_t stage = 0; stage < stages_.size(); ++stage) {
    const SavedPerToken with = saved_per_token(config_, stages_[stage], job.adapters, job_tokens, facts_);
    take({with.model - without[stage].model, with.layer - without[stage].layer}, dearest);
  }
  return dearest;
}

const std::vector<SavedPerToken>& SavedBytes::frozen(int64_t lowest_layer) {
  const auto [found, is_new] = frozen_.try_emplace(lowest_layer);
  for (size_t stage = 0; is_new && stage < stages_.size(); ++stage) {
    found->second.push_back(saved_per_token(config_, stages_[stage], {{.layer = lowest_layer}}, {}, facts_));
  }
  return found->second;
}

}  // namespace cotune
