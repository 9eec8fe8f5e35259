#include "schedule/pipeline/replica_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>

#include "schedule/pipeline/dealt_round.h"
#include "schedule/pipeline/divided_rounds.h"
#include "schedule/random_batches.h"

namespace cotune {
namespace {

/// Rounds of the same random jobs, their rows dealt at random: some replicas have none of a job, or of a whole round.
std::vector<DealtRound> random_rounds(Dice& dice, int64_t replicas) {
  std::vector<DealtRound> rounds;
  std::vector<BatchShape> batches = random_round(dice);
  const int64_t count = dice.between(1, 4);
  for (int64_t round = 0; round < count; ++round) {
    DealtRound& dealt = rounds.emplace_back();
    const int64_t avoided = dice.between(0, 2 * replicas);
    for (BatchShape& batch : batches) {
      for (int64_t& length : batch.row_lengths) length = std::min<int64_t>(length, 700);
      ++batch.step;
      std::vector<int32_t>& own = dealt.replica_of.emplace_back();
      const int64_t only = dice.between(-1, replicas - 1);
      for (size_t row = 0; row < batch.row_lengths.size(); ++row) {
        int64_t replica = only >= 0 ? only : dice.between(0, replicas - 1);
        if (replica == avoided && replicas > 1) replica = (replica + 1) % replicas;
        own.push_back(static_cast<int32_t>(replica));
      }
    }
    dealt.batches = batches;
  }
  return rounds;
}

std::optional<ReplicaPlans> plan_of(const std::vector<DealtRound>& rounds, const std::vector<PipelineLayout>& layouts, RankOrder order) {
  const auto policy = [](size_t, size_t) {
    return PackingPolicy{.sharing = Sharing::temporal, .token_budget = 512, .layer_count = test_layer_count};
  };
  return plan_replicas(rounds, policy, layouts, [&](size_t replica, std::vector<StepPlan> own) {
    return plan_ranks(std::move(own), layouts[replica], by_tokens,
                      {.order = order,
                       .cluster = {},
                       .most_in_flight = layouts[replica].rank_count(),
                       .interleave = Interleave::always,
                       .graphs = some_graphs});
  });
}

int32_t lowest_stage_of(const RankPlan& plan, const PipelineLayout& layout, int32_t microbatch) {
  for (const StepPlan& round : plan.rounds) {
    const auto count = static_cast<int32_t>(round.microbatches.size());
    if (microbatch >= count) {
      microbatch -= count;
      continue;
    }
    int64_t lowest = test_layer_count;
    for (const Atom& atom : round.microbatches[static_cast<size_t>(microbatch)].atoms) {
      lowest = std::min(lowest, std::ranges::find(round.batches, atom.job, &BatchShape::job)->lowest_layer);
    }
    return layout.stage_of(lowest);
  }
  return -1;
}

/// Runs all ranks, each rank's exchanges in the plan's order beside its actions: whether all come to their end.
bool comes_to_its_end(const ReplicaPlans& plans, const std::vector<PipelineLayout>& layouts, const std::vector<DealtRound>& rounds) {
  std::map<JobStep, int64_t> lowest_layer;
  for (const DealtRound& round : rounds) {
    for (const BatchShape& batch : round.batches) lowest_layer[{batch.job, batch.step}] = batch.lowest_layer;
  }
  struct Rank {
    size_t replica = 0, place = 0, next = 0, exchanged = 0;
    std::set<JobStep> posted;
  };
  std::vector<Rank> ranks;
  for (size_t r = 0; r < layouts.size(); ++r) {
    for (size_t place = 0; place < plans.replicas[r].ranks.size(); ++place) ranks.push_back({r, place});
  }
  const auto takes_part = [&](const Rank& rank, const JobStep& step) {
    const PipelineLayout& layout = layouts[rank.replica];
    return static_cast<int32_t>(rank.place) >= layout.stage_rank[static_cast<size_t>(layout.stage_of(lowest_layer.at(step)))];
  };
  using Message = std::tuple<size_t, ActionKind, int32_t, int32_t>;
  std::set<Message> posted, sent;
  std::set<JobStep> done;
  size_t exchanged = 0;
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    while (exchanged < plans.exchanges.size()) {  // all ranks that take part have posted: exchanges are in one order everywhere
      const JobStep step = plans.exchanges[exchanged];
      if (!std::ranges::all_of(ranks, [&](const Rank& rank) { return !takes_part(rank, step) || rank.posted.contains(step); })) break;
      done.insert(step);
      ++exchanged;
      goes_on = true;
    }
    for (Rank& rank : ranks) {
      const std::vector<Action>& list = plans.replicas[rank.replica].ranks[rank.place];
      while (rank.next < list.size()) {
        const Action& action = list[rank.next];
        const auto message = [&](ActionKind kind) { return Message{rank.replica, kind, action.microbatch, action.stage}; };
        const auto all_sent = [&](ActionKind kind) {
          if (action.clock < 0) return sent.contains(message(kind));
          const RankPlan& plan = plans.replicas[rank.replica];
          return std::ranges::all_of(plan.clocks[static_cast<size_t>(action.clock)].microbatches, [&](int32_t member) {
            const bool goes_no_lower = kind == ActionKind::send_error && lowest_stage_of(plan, layouts[rank.replica], member) > action.stage;
            return goes_no_lower || sent.contains(Message{rank.replica, kind, member, action.stage});
          });
        };
        const int32_t stage_rank_below = action.stage - 1, top = static_cast<int32_t>(layouts[rank.replica].stages.size()) - 1;
        bool may = true;
        switch (action.kind) {
          case ActionKind::receive_activation: posted.insert(message(ActionKind::send_activation)); break;
          case ActionKind::receive_error: posted.insert(message(ActionKind::send_error)); break;
          case ActionKind::send_activation:
          case ActionKind::send_error:
            may = posted.contains(message(action.kind));
            if (may) sent.insert(message(action.kind));
            break;
          case ActionKind::forward: may = stage_rank_below < 0 || all_sent(ActionKind::send_activation); break;
          case ActionKind::backward: may = action.stage == top || all_sent(ActionKind::send_error); break;
          case ActionKind::reduce_gradients: rank.posted.insert({action.job, action.job_step}); break;
          case ActionKind::optimizer_step: may = done.contains({action.job, action.job_step}); break;
          default: break;
        }
        if (!may) break;
        ++rank.next;
        goes_on = true;
      }
    }
  }
  return std::ranges::all_of(ranks, [&](const Rank& rank) { return rank.next == plans.replicas[rank.replica].ranks[rank.place].size(); });
}

TEST(ReplicaPlans, ComeToTheirEndForRandomRoundsAndShapes) {
  size_t planned = 0, overlapping = 0, pairs = 0;
  for (uint64_t key = 0; key < 120; ++key) {
    Dice dice(key);
    std::vector<PipelineLayout> layouts;
    for (int64_t r = dice.between(2, 4); r > 0; --r) {
      layouts.push_back(pipeline(static_cast<int32_t>(dice.between(1, 3)), test_layer_count, key % 3 == 0 ? 2 : 1));
    }
    const std::vector<DealtRound> rounds = random_rounds(dice, static_cast<int64_t>(layouts.size()));
    const RankOrder order = std::array{RankOrder::automatic, RankOrder::gpipe, RankOrder::lorapp, RankOrder::one_f_one_b}[key % 4];
    const std::optional<ReplicaPlans> plans = plan_of(rounds, layouts, order);
    EXPECT_TRUE(plans.has_value() || rounds.size() > 1) << key;
    if (!plans) continue;
    ++planned;
    for (const RankPlan& replica : plans->replicas) {
      pairs += static_cast<size_t>(std::ranges::count_if(replica.clocks, [](const PipelineClock& clock) { return clock.microbatches.size() > 1; }));
    }
    overlapping += rounds.size() > 1;
    EXPECT_TRUE(comes_to_its_end(*plans, layouts, rounds)) << key;
  }
  EXPECT_GT(planned, 60u);
  EXPECT_GT(pairs, 60u) << "microbatches of ranks that divide layers run side by side";
  EXPECT_GT(overlapping, 20u);
}

TEST(ReplicaPlans, StepEachJobOnceOnEveryStageFromItsLowestUp) {
  for (uint64_t key = 500; key < 560; ++key) {
    Dice dice(key);
    const std::vector<PipelineLayout> layouts{pipeline(1, test_layer_count), pipeline(3, test_layer_count)};
    const std::vector<DealtRound> rounds = random_rounds(dice, 2);
    const std::optional<ReplicaPlans> plans = plan_of(rounds, layouts, RankOrder::automatic);
    if (!plans) continue;
    size_t steps = 0;
    for (const DealtRound& round : rounds) steps += round.batches.size();
    EXPECT_EQ(std::set<JobStep>(plans->exchanges.begin(), plans->exchanges.end()).size(), steps);
    for (size_t r = 0; r < layouts.size(); ++r) {
      std::map<std::pair<JobStep, int32_t>, int> made;
      for (const std::vector<Action>& list : plans->replicas[r].ranks) {
        std::map<JobStep, size_t> posted;
        for (size_t i = 0; i < list.size(); ++i) {
          const JobStep step{list[i].job, list[i].job_step};
          if (list[i].kind == ActionKind::reduce_gradients) {
            EXPECT_TRUE(posted.emplace(step, i).second);
          }
          if (list[i].kind != ActionKind::optimizer_step) continue;
          EXPECT_TRUE(posted.contains(step)) << "gradients are posted before the step";
          ++made[{step, list[i].stage}];
        }
      }
      for (const DealtRound& round : rounds) {
        for (const BatchShape& batch : round.batches) {
          for (int32_t stage = 0; stage < static_cast<int32_t>(layouts[r].stages.size()); ++stage) {
            const bool adapts = stage >= layouts[r].stage_of(batch.lowest_layer);
            EXPECT_EQ((made[{{batch.job, batch.step}, stage}]), adapts ? 1 : 0) << key;
          }
        }
      }
    }
  }
}

TEST(ReplicaPlans, OfRoundsThatWouldWaitForEachOtherAreRefused) {
  // Of two jobs the replicas have the rows in two steps each, taken in opposite orders without a flush.
  const PipelineLayout one = pipeline(1, test_layer_count);
  const auto plan = [&](const std::vector<std::pair<int32_t, int64_t>>& order) {
    RankPlan result;
    StepPlan rounds[2];
    std::map<JobStep, int32_t> microbatch;
    for (int64_t step = 0; step < 2; ++step) {
      for (int32_t job = 0; job < 2; ++job) {
        rounds[step].batches.push_back({.job = job, .step = step, .row_lengths = {4}});
        rounds[step].microbatches.push_back({.atoms = {{.job = job, .index = 0, .segments = {}}}});
        microbatch[{job, step}] = static_cast<int32_t>(2 * step + job);
      }
      result.rounds.push_back(rounds[step]);
    }
    std::vector<Action>& list = result.ranks.emplace_back();
    for (const auto& [job, step] : order) {
      for (const ActionKind kind : {ActionKind::forward, ActionKind::backward, ActionKind::free}) {
        list.push_back({.kind = kind, .microbatch = microbatch.at({job, step})});
      }
    }
    result.schedule.ranks = result.ranks;
    return result;
  };
  const std::vector<std::vector<ExchangedStep>> rounds{{{{0, 0}, 0}, {{1, 0}, 0}}, {{{0, 1}, 0}, {{1, 1}, 0}}};
  const std::vector<PipelineLayout> layouts{one, one};
  const auto together = [&](RankPlan a, RankPlan b) {
    ReplicaPlans plans;
    plans.replicas = {std::move(a), std::move(b)};
    plans.rows.resize(2);
    return with_exchanges(std::move(plans), layouts, rounds);
  };
  const RankPlan first_job_first = plan({{0, 0}, {0, 1}, {1, 0}, {1, 1}}), second_job_first = plan({{1, 0}, {1, 1}, {0, 0}, {0, 1}});
  EXPECT_FALSE(together(first_job_first, second_job_first).has_value());
  EXPECT_TRUE(together(first_job_first, first_job_first).has_value());
  EXPECT_TRUE(together(plan({{0, 0}, {1, 0}, {0, 1}, {1, 1}}), plan({{1, 0}, {0, 0}, {1, 1}, {0, 1}})).has_value());
}

}  // namespace
}  // namespace cotune
