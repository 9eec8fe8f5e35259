#include "schedule/pipeline/alive_tokens.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/error.h"

namespace cotune {
namespace {

/// A microbatch on a stage of so many layers.
struct Held {
  const Microbatch& microbatch;
  size_t round = 0;
  int32_t stage = 0;
  int64_t layers = 1;
};

/// Of one rank, in tokens times layers.
class Alive {
 public:
  void begin(const Held& held) {
    const int64_t tokens = held.layers * held.microbatch.token_count();
    for (const RowPart& part : row_parts(held.microbatch)) {
      if (part.length == part.row_length) continue;
      Chain& chain = chains_[key(held, part)];
      ++chain.parts;
      chain.forward += part.length;
      chain.tokens += held.layers * (part.length + part.pad);
      chain_tokens_ += held.layers * (part.length + part.pad);
    }
    alive_ += tokens;
    worst.microbatch_tokens = std::max(worst.microbatch_tokens, tokens);
    worst.alive_tokens = std::max(worst.alive_tokens, alive_);
    worst.chain_tokens = std::max(worst.chain_tokens, chain_tokens_);
  }

  void end(const Held& held) {
    alive_ -= held.layers * held.microbatch.token_count();
    for (const RowPart& part : row_parts(held.microbatch)) {
      if (part.length == part.row_length) continue;
      const auto chain = chains_.find(key(held, part));
      if (--chain->second.parts > 0 || chain->second.forward < part.row_length) continue;
      chain_tokens_ -= chain->second.tokens;
      chains_.erase(chain);
    }
  }

  WorstCase worst;

 private:
  /// Of a row: from its first chunk's forward to the last one's end.
  struct Chain {
    int64_t parts = 0;    ///< alive
    int64_t forward = 0;  ///< real tokens that have gone forward
    int64_t tokens = 0;
  };
  using Key = std::tuple<size_t, int32_t, int32_t, int32_t>;
  static Key key(const Held& held, const RowPart& part) { return {held.round, part.job, part.row, held.stage}; }

  int64_t alive_ = 0, chain_tokens_ = 0;
  std::map<Key, Chain> chains_;
};

/// By layer of the model, rounded up.
WorstCase over_layers(const WorstCase& sum, int64_t layers) {
  const auto share = [&](int64_t tokens) { return (tokens + layers - 1) / layers; };
  return {share(sum.microbatch_tokens), share(sum.alive_tokens), share(sum.chain_tokens)};
}

/// One for each list of actions.
std::vector<Alive> walk(const RankPlan& plan, const PipelineLayout& layout) {
  std::vector<std::pair<size_t, const Microbatch*>> microbatches;  // with their rounds
  for (size_t round = 0; round < plan.rounds.size(); ++round) {
    for (const Microbatch& microbatch : plan.rounds[round].microbatches) microbatches.push_back({round, &microbatch});
  }
  const auto held = [&](int32_t index, int32_t stage) {
    const auto& [round, microbatch] = microbatches[static_cast<size_t>(index)];
    const StageShape& shape = layout.stages[static_cast<size_t>(stage)];
    return Held{*microbatch, round, stage, shape.last_layer - shape.first_layer};
  };
  std::vector<Alive> ranks;
  for (const std::vector<Action>& actions : plan.ranks) {
    Alive& alive = ranks.emplace_back();
    for (const Action& action : actions) {
      if (action.kind == ActionKind::free) alive.end(held(action.microbatch, action.stage));
      if (action.kind != ActionKind::forward) continue;
      if (action.clock < 0) {
        alive.begin(held(action.microbatch, action.stage));
      } else {
        for (const int32_t each : plan.clocks[static_cast<size_t>(action.clock)].microbatches) alive.begin(held(each, action.stage));
      }
    }
  }
  return ranks;
}

}  // namespace

WorstCase alive_at_most(const StepPlan& plan) {
  Alive alive;
  for (const Action& action : plan.actions) {
    if (action.microbatch < 0) continue;
    const Held held{plan.microbatches[static_cast<size_t>(action.microbatch)]};
    if (action.kind == ActionKind::forward) alive.begin(held);
    if (action.kind == ActionKind::free) alive.end(held);
  }
  return alive.worst;
}

WorstCase alive_at_most(std::span<const RankPlan> replicas, std::span<const PipelineLayout> layouts, bool are_processes) {
  COTUNE_CHECK(replicas.size() == layouts.size(), "plans of {} replicas for {}", replicas.size(), layouts.size());
  WorstCase all;
  int64_t layers = 0;
  for (const StageShape& stage : layouts.front().stages) layers += stage.last_layer - stage.first_layer;
  for (size_t replica = 0; replica < replicas.size(); ++replica) {
    for (const Alive& rank : walk(replicas[replica], layouts[replica])) {
      const auto take = [&](int64_t WorstCase::*kind) {
        all.*kind = are_processes ? std::max(all.*kind, rank.worst.*kind) : all.*kind + rank.worst.*kind;
      };
      take(&WorstCase::microbatch_tokens);
      take(&WorstCase::alive_tokens);
      take(&WorstCase::chain_tokens);
    }
  }
  return over_layers(all, layers);
}

}  // namespace cotune
