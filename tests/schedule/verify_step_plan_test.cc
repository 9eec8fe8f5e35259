#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "base/error.h"
#include "schedule/random_batches.h"
#include "schedule/step_plan.h"
#include "schedule/verify_step_plan.h"

namespace cotune {
namespace {

/// A plan with fused jobs, a chain over three microbatches and a job that ends early.
StepPlan good_plan(PackingPolicy policy = {.token_budget = 400}) {
  const std::vector<BatchShape> round = {{.job = 0, .step = 7, .row_lengths = {30, 1000, 40}},
                                         {.job = 2, .step = 3, .row_lengths = {90, 20}},
                                         {.job = 5, .step = 0, .row_lengths = {100, 200, 210}}};
  policy.layer_count = test_layer_count;
  return plan_step(round, policy);
}

std::string first_violation(const StepPlan& plan) {
  try {
    verify(plan, test_layer_count);
  } catch (const InternalError& error) {
    return error.what();
  }
  return "accepted";
}

using Change = std::function<void(StepPlan&)>;

void expect_violation(const std::string& part_of_message, const Change& change,
                      const PackingPolicy& policy = {.token_budget = 400}) {
  StepPlan plan = good_plan(policy);
  ASSERT_EQ(first_violation(plan), "accepted");
  change(plan);
  EXPECT_NE(first_violation(plan).find(part_of_message), std::string::npos) << first_violation(plan);
}

size_t find_action(const StepPlan& plan, ActionKind kind, size_t nth = 0) {
  for (size_t i = 0; i < plan.actions.size(); ++i) {
    if (plan.actions[i].kind == kind && nth-- == 0) return i;
  }
  ADD_FAILURE();
  return 0;
}

/// The first forward of a chain.
size_t find_chain(const StepPlan& plan) {
  size_t i = 0;
  while (plan.actions[i].kind != ActionKind::forward || plan.actions[i + 1].kind != ActionKind::forward) ++i;
  return i;
}

TEST(Verify, RejectsTokensThatAreMissingOrThereTwice) {
  expect_violation("tokens are in the plan", [](StepPlan& plan) {
    Atom& atom = plan.microbatches.back().atoms.back();
    atom.segments.back().length -= 1;
  });
  expect_violation("are not one run", [](StepPlan& plan) {
    std::vector<Segment>& segments = plan.microbatches.back().atoms.back().segments;
    segments.push_back(segments.back());
  }, {.sharing = Sharing::batch_all});
  expect_violation("missing or there twice", [](StepPlan& plan) {
    plan.microbatches.back().atoms.back().index += 1;
  });
  expect_violation("is empty", [](StepPlan& plan) { plan.microbatches.emplace_back(); });
  expect_violation("has no batch", [](StepPlan& plan) { plan.batches.pop_back(); });
  expect_violation("is wrong", [](StepPlan& plan) { plan.microbatches[0].atoms[0].segments[0].row_length += 1; });
}

TEST(Verify, RejectsAtomsInDisorder) {
  expect_violation("not in ascending index", [](StepPlan& plan) {
    for (Microbatch& microbatch : plan.microbatches) {
      for (size_t a = 0; a + 1 < microbatch.atoms.size(); ++a) {
        if (microbatch.atoms[a].job == microbatch.atoms[a + 1].job) {
          std::swap(microbatch.atoms[a], microbatch.atoms[a + 1]);
          return;
        }
      }
    }
  }, {.token_budget = 1200});
  expect_violation("are not adjacent", [](StepPlan& plan) {
    std::vector<Atom>& atoms = plan.microbatches[0].atoms;
    std::swap(atoms.front(), atoms[atoms.size() - 2]);
  }, {.sharing = Sharing::batch_all});
}

TEST(Verify, RejectsMicrobatchesThatThePolicyExcludes) {
  expect_violation("above the budget", [](StepPlan& plan) { plan.policy.token_budget = 256; });
  expect_violation("fuses jobs", [](StepPlan& plan) { plan.policy.sharing = Sharing::temporal; });
  expect_violation("two hybrid tasks", [](StepPlan& plan) { plan.policy.hybrid_tasks = {{0}, {2, 5}}; });
  expect_violation("pads", [](StepPlan& plan) { plan.microbatches[0].atoms[0].segments.back().pad = 1; });
  expect_violation("pads", [](StepPlan& plan) { plan.policy.layout = Layout::padded; });
}

TEST(Verify, RejectsForwardAndBackwardInDisorder) {
  expect_violation("before its forward", [](StepPlan& plan) {
    const size_t i = find_action(plan, ActionKind::forward, plan.microbatches.size() - 1);
    std::swap(plan.actions[i], plan.actions[i + 1]);
  });
  expect_violation("goes forward twice", [](StepPlan& plan) {
    plan.actions.insert(plan.actions.begin(), plan.actions.front());
  });
  expect_violation("goes forward from token", [](StepPlan& plan) {
    const size_t i = find_chain(plan);
    std::swap(plan.actions[i], plan.actions[i + 1]);
  });
  expect_violation("goes backward before its later chunks", [](StepPlan& plan) {
    size_t i = find_chain(plan);
    while (plan.actions[i].kind != ActionKind::backward) ++i;
    std::swap(plan.actions[i].microbatch, plan.actions[i + 2].microbatch);
  });
  expect_violation("freed before its backward", [](StepPlan& plan) {
    const size_t i = find_action(plan, ActionKind::backward, 1);
    std::swap(plan.actions[i], plan.actions[i + 1]);
  });
  expect_violation("of one rank", [](StepPlan& plan) { plan.actions.push_back({.kind = ActionKind::send_error}); });
}

TEST(Verify, RejectsGradientsOutOfOrder) {
  // Two whole microbatches of one job, exchanged.
  StepPlan plan = plan_step(std::vector<BatchShape>{{.row_lengths = {200, 200}}}, {.token_budget = 256});
  std::swap(plan.microbatches[0], plan.microbatches[1]);
  EXPECT_NE(first_violation(plan).find("goes backward, expected"), std::string::npos) << first_violation(plan);
}

TEST(Verify, RejectsWrongOptimizerSteps) {
  expect_violation("atoms to come", [](StepPlan& plan) {
    plan.actions.insert(plan.actions.begin(), plan.actions[find_action(plan, ActionKind::optimizer_step)]);
  });
  expect_violation("second optimizer step", [](StepPlan& plan) {
    plan.actions.push_back(plan.actions[find_action(plan, ActionKind::optimizer_step)]);
  });
  expect_violation("has no optimizer step", [](StepPlan& plan) {
    plan.actions.erase(plan.actions.begin() + static_cast<long>(find_action(plan, ActionKind::optimizer_step)));
  });
  expect_violation("is at step", [](StepPlan& plan) {
    plan.actions[find_action(plan, ActionKind::optimizer_step)].job_step += 1;
  });
}

TEST(Verify, RejectsWrongRecomputation) {
  const PackingPolicy policy{.token_budget = 400, .recompute = true};
  expect_violation("without recompute directly before", [](StepPlan& plan) {
    plan.actions.erase(plan.actions.begin() + static_cast<long>(find_action(plan, ActionKind::recompute)));
  }, policy);
  expect_violation("recompute of layers", [](StepPlan& plan) {
    const size_t i = find_action(plan, ActionKind::recompute);
    plan.actions.insert(plan.actions.begin() + static_cast<long>(i), plan.actions[i]);
  }, policy);
  expect_violation("not recomputed", [](StepPlan& plan) {
    plan.actions[find_action(plan, ActionKind::backward)].first_layer = -1;
    plan.actions[find_action(plan, ActionKind::backward)].last_layer = -1;
  }, policy);
  expect_violation("backward is not through", [](StepPlan& plan) {
    const size_t i = find_action(plan, ActionKind::free);
    std::swap(plan.actions[i], plan.actions[i - 2]);
    plan.actions.erase(plan.actions.begin() + static_cast<long>(i));
    plan.actions[i - 2].microbatch += 1;
  }, policy);
  StepPlan other_depth = good_plan(policy);
  EXPECT_THROW(verify(other_depth, test_layer_count + 1), InternalError);
}

/// Every dropped, doubled or exchanged action of random plans is seen, unless the exchange is between actions whose
/// order is free.
TEST(Verify, RejectsEveryDroppedAndEveryDoubledAction) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Dice dice(mix_key(20, seed));
    const StepPlan plan = plan_step(random_round(dice), random_policy(dice));
    const auto place = dice.between(0, static_cast<int64_t>(plan.actions.size()) - 1);
    StepPlan dropped = plan;
    dropped.actions.erase(dropped.actions.begin() + place);
    EXPECT_NE(first_violation(dropped), "accepted") << "seed " << seed << ", action " << place;
    StepPlan doubled = plan;
    doubled.actions.insert(doubled.actions.begin() + place, plan.actions[static_cast<size_t>(place)]);
    EXPECT_NE(first_violation(doubled), "accepted") << "seed " << seed << ", action " << place;
  }
}

TEST(Verify, RejectsEveryExchangeOfDependentActions) {
  int exchanged = 0;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    Dice dice(mix_key(21, seed));
    StepPlan plan = plan_step(random_round(dice), random_policy(dice));
    const size_t i = static_cast<size_t>(dice.between(0, static_cast<int64_t>(plan.actions.size()) - 1));
    if (i + 1 >= plan.actions.size()) continue;
    const Action& a = plan.actions[i];
    const Action& b = plan.actions[i + 1];
    const bool same_microbatch = a.microbatch >= 0 && a.microbatch == b.microbatch;
    if (!same_microbatch) continue;
    std::swap(plan.actions[i], plan.actions[i + 1]);
    EXPECT_NE(first_violation(plan), "accepted") << "seed " << seed << ", action " << i;
    ++exchanged;
  }
  EXPECT_GT(exchanged, 100);
}

TEST(Verify, RejectsEveryChangedSegment) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Dice dice(mix_key(22, seed));
    StepPlan plan = plan_step(random_round(dice), random_policy(dice));
    const auto pick = [&](auto& list) -> auto& {
      return list[static_cast<size_t>(dice.between(0, static_cast<int64_t>(list.size()) - 1))];
    };
    std::vector<Segment>& segments = pick(pick(plan.microbatches).atoms).segments;
    switch (dice.between(0, 5)) {
      case 0: segments.push_back(pick(segments)); break;
      case 1: segments.erase(segments.begin() + dice.between(0, static_cast<int64_t>(segments.size()) - 1)); break;
      case 2: pick(segments).position += 1; break;
      case 3: pick(segments).length += 1; break;
      case 4: pick(segments).row += 1; break;
      default: pick(segments).row_length += 1; break;
    }
    EXPECT_NE(first_violation(plan), "accepted") << "seed " << seed;
  }
}

}  // namespace
}  // namespace cotune
