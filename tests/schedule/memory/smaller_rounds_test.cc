#include "schedule/memory/smaller_rounds.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

MemoryEstimate activations(int64_t bytes) {
  MemoryEstimate estimate;
  estimate.weights = 100;
  estimate.activations = bytes;
  return estimate;
}

TEST(SmallerRounds, HalveTheBudgetThenRecompute) {
  PackingPolicy policy{.token_budget = 1500};
  std::vector<std::pair<int64_t, bool>> steps;
  for (auto next = smaller_rounds(policy, Recompute::automatic); next; next = smaller_rounds(*next, Recompute::automatic)) {
    steps.emplace_back(next->token_budget, next->recompute);
  }
  EXPECT_EQ(steps, (std::vector<std::pair<int64_t, bool>>{{750, false}, {375, false}, {375, true}}));
}

TEST(SmallerRounds, RespectWhatTheUserAskedFor) {
  EXPECT_EQ(smaller_rounds({.token_budget = 400}, Recompute::never), std::nullopt);
  EXPECT_EQ(smaller_rounds({.token_budget = 400, .recompute = true}, Recompute::always), std::nullopt);
  EXPECT_TRUE(smaller_rounds({.sharing = Sharing::batch_all}, Recompute::automatic)->recompute);
  EXPECT_TRUE(smaller_rounds({.layout = Layout::chunked, .token_budget = 1024, .chunk_size = 600}, Recompute::automatic)->recompute);
}

TEST(SmallerRounds, RefuseAJobOnlyWhereTheLastStepDoesNotFit) {
  const auto predict = [](const PackingPolicy& policy) { return activations(policy.recompute ? 10 : policy.token_budget); };
  const PackingPolicy policy{.token_budget = 1024};
  EXPECT_EQ(refuse_for_ever(3, 110, policy, Recompute::automatic, predict), std::nullopt);
  EXPECT_EQ(refuse_for_ever(3, 109, policy, Recompute::automatic, predict), (AdmissionRefusal{3, "activations", 110, 109}));
  EXPECT_EQ(refuse_for_ever(3, 300, policy, Recompute::never, predict), (AdmissionRefusal{3, "activations", 356, 300}));
  EXPECT_EQ(refuse_for_ever(3, 99, policy, Recompute::automatic, predict)->term, "weights");
}

}  // namespace
}  // namespace cotune
