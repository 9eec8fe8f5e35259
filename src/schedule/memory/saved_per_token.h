/// Inside the memory model: what a token's forward keeps for its backward.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "model/config/model_config.h"
#include "schedule/memory/memory_facts.h"

namespace cotune {

/// Saved bytes per token, in all and of the layer that saves most.
struct SavedPerToken {
  int64_t model = 0;
  int64_t layer = 0;
};

/// The lowest layer that the job adapts; the model's layers, where it adapts none.
int64_t lowest_layer(const ModelConfig& config, const JobFootprint& job);

/// Of the dearest stage, which may be another one for each kind.
class SavedBytes {
 public:
  /// Both must outlive it.
  SavedBytes(const ModelConfig& config, const MemoryFacts& facts);

  /// Of the frozen model, under adapters from `lowest_layer` up.
  SavedPerToken by_model(int64_t lowest_layer);

  /// What a job's adapters add to that.
  SavedPerToken by_adapters(const JobFootprint& job);

 private:
  /// On each stage.
  const std::vector<SavedPerToken>& frozen(int64_t lowest_layer);

  const ModelConfig& config_;
  const MemoryFacts& facts_;
  std::vector<StageShape> stages_;
  std::map<int64_t, std::vector<SavedPerToken>> frozen_;  ///< by lowest layer
};

}  // namespace cotune
