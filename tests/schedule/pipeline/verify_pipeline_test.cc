#include "schedule/pipeline/verify_pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "schedule/pipeline/random_work.h"

namespace cotune {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

/// What verify says against a schedule; empty: nothing.
std::string objection(const PipelineWork& work, const PipelineSchedule& schedule) {
  try {
    verify(work, schedule);
    return {};
  } catch (const InternalError& error) {
    return error.what();
  }
}

TEST(VerifyPipeline, AcceptsEveryGeneratorOnThousandsOfRandomWorks) {
  for (uint64_t seed = 0; seed < 700; ++seed) {
    Dice dice(seed);
    const PipelineWork work = random_work(dice, seed % 3 == 0 ? static_cast<int32_t>(dice.between(2, 3)) : 1);
    const PipelineCluster cluster = random_cluster(dice);
    for (const NamedOrder& named : all_orders(work, cluster)) {
      const PipelineSchedule schedule = make_schedule(work, named.order, cluster);
      ASSERT_EQ(objection(work, schedule), "") << named.name << ", seed " << seed;
    }
  }
}

TEST(VerifyPipeline, HoldsWhateverTimesTheScheduleWasMadeFor) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    PipelineWork work = random_work(dice);
    const PipelineSchedule schedule = make_schedule(work, lorapp(work), random_cluster(dice));
    for (PipelineMicrobatch& microbatch : work.microbatches) {
      for (StageCost& cost : microbatch.cost) cost.forward_s = static_cast<double>(dice.between(0, 50));
    }
    ASSERT_EQ(objection(work, schedule), "") << seed;
  }
}

/// Works that are small enough to break each of their actions in turn: one and two stages per rank.
std::vector<PipelineWork> small_works() {
  std::vector<PipelineWork> works;
  for (uint64_t seed = 0; works.size() < 12; ++seed) {
    Dice dice(seed);
    PipelineWork work = random_work(dice, seed % 2 == 0 ? 2 : 1);
    const size_t computations = work.microbatches.size() * work.stage_rank.size();
    if (computations >= 8 && computations <= 40) works.push_back(std::move(work));
  }
  return works;
}

TEST(VerifyPipeline, RejectsEveryDroppedAndEveryDoubledAction) {
  for (const PipelineWork& work : small_works()) {
    const PipelineSchedule schedule = make_schedule(work, lorapp(work));
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
        PipelineSchedule dropped = schedule;
        dropped.ranks[rank].erase(dropped.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i));
        EXPECT_NE(objection(work, dropped), "") << "without " << to_json_line(schedule.ranks[rank][i]);
        PipelineSchedule doubled = schedule;
        doubled.ranks[rank].insert(doubled.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i),
                                   schedule.ranks[rank][i]);
        EXPECT_NE(objection(work, doubled), "") << "with two " << to_json_line(schedule.ranks[rank][i]);
      }
    }
  }
}

TEST(VerifyPipeline, RejectsEveryFalseFieldAndActionsOnOtherRanks) {
  for (const PipelineWork& work : small_works()) {
    const PipelineSchedule schedule = make_schedule(work, structured_template(work));
    for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
      for (size_t i = 0; i < schedule.ranks[rank].size(); ++i) {
        const auto changed = [&](auto&& change) {
          PipelineSchedule other = schedule;
          change(other.ranks[rank][i]);
          return objection(work, other);
        };
        const Action& action = schedule.ranks[rank][i];
        const std::string what = to_json_line(action);
        EXPECT_NE(changed([](Action& a) { a.stage += 1; }), "") << what;
        EXPECT_NE(changed([](Action& a) { a.stage -= 1; }), "") << what;
        EXPECT_NE(changed([](Action& a) { a.microbatch += 1; }), "") << what;
        EXPECT_NE(changed([](Action& a) { a.job_step += 1; }), "") << what;
        EXPECT_NE(changed([](Action& a) { a.job += 1; }), "") << what;
        EXPECT_NE(changed([](Action& a) { a.hybrid_task += 1; }), "") << what;
        EXPECT_NE(changed([](Action& a) { a.first_layer = 0; }), "") << what;
        EXPECT_NE(changed([](Action& a) { a.last_layer = 0; }), "") << what;
        EXPECT_NE(changed([](Action& a) { a.clock = 0; }), "") << what;
        EXPECT_NE(changed([](Action& a) { a.peer += 1; }), "") << what;
        EXPECT_NE(changed([](Action& a) { a.bytes -= 1; }), "") << what;
        if (schedule.ranks.size() > 1) {
          PipelineSchedule moved = schedule;
          moved.ranks[rank].erase(moved.ranks[rank].begin() + static_cast<std::ptrdiff_t>(i));
          std::vector<Action>& other = moved.ranks[(rank + 1) % schedule.ranks.size()];
          other.push_back(action);
          EXPECT_NE(objection(work, moved), "") << what;
        }
      }
    }
  }
}

/// Two jobs of two microbatches and two steps on three stages, as LoRAPP orders it.
struct LorappExample {
  PipelineWork work = uniform_work(3, 2, 2, 2, {}, {100, 50});
  PipelineSchedule schedule = make_schedule(work, lorapp(work));

  std::vector<Action>& rank(size_t r) { return schedule.ranks[r]; }
  std::vector<Action>::iterator find(size_t r, ActionKind kind, size_t which = 0) {
    for (auto at = rank(r).begin();; ++at) {
      if (at->kind == kind && which-- == 0) return at;
    }
  }
  /// Moves the action at `from` to the place before `to`, in one rank's list.
  static void move(std::vector<Action>::iterator from, std::vector<Action>::iterator to) {
    if (from < to) {
      std::rotate(from, from + 1, to);
    } else {
      std::rotate(to, from, from + 1);
    }
  }
};

TEST(VerifyPipeline, NamesTheExchangedMessagesOfAChannel) {
  LorappExample example;
  std::iter_swap(example.find(1, ActionKind::receive_activation, 0),
                 example.find(1, ActionKind::receive_activation, 1));
  EXPECT_THAT(objection(example.work, example.schedule), HasSubstr("of its channel is sent as"));
}

TEST(VerifyPipeline, FindsTwoRanksThatWaitForEachOther) {
  // Both send before they post: each stands at its send.
  const PipelineWork work = uniform_work(2, 2, 1, 1);
  PipelineSchedule schedule = make_schedule(work, lorapp(work));
  std::vector<Action>& first = schedule.ranks[0];
  const auto error = std::find_if(first.begin(), first.end(),
                                  [](const Action& a) { return a.kind == ActionKind::receive_error; });
  const auto second_send = std::find_if(first.begin(), first.end(), [](const Action& a) {
    return a.kind == ActionKind::send_activation && a.microbatch == 1;
  });
  ASSERT_LT(error, first.end());
  std::vector<Action>& last = schedule.ranks[1];
  const auto send_error = std::find_if(last.begin(), last.end(),
                                       [](const Action& a) { return a.kind == ActionKind::send_error; });
  const auto second_receive = std::find_if(last.begin(), last.end(), [](const Action& a) {
    return a.kind == ActionKind::receive_activation && a.microbatch == 1;
  });
  // Rank 0 posts the error's receive only after its second send; rank 1 posts that one's only after it sent
  // the error.
  if (error < second_send) std::rotate(error, error + 1, second_send + 1);
  if (second_receive < send_error) std::rotate(second_receive, second_receive + 1, send_error + 1);
  const std::string found = objection(work, schedule);
  EXPECT_THAT(found, HasSubstr("deadlock"));
  EXPECT_THAT(found, HasSubstr("rank 0 waits at action"));
  EXPECT_THAT(found, HasSubstr("rank 1 waits at action"));
}

TEST(VerifyPipeline, WantsReceivesPostedBeforeTheirUse) {
  LorappExample example;
  const auto receive = example.find(1, ActionKind::receive_activation, 0);
  LorappExample::move(receive, example.find(1, ActionKind::forward, 0) + 1);
  EXPECT_THAT(objection(example.work, example.schedule), HasSubstr("whose receive is not posted"));
}

TEST(VerifyPipeline, WantsSendsAfterTheirComputationAndBeforeTheFree) {
  {
    LorappExample example;
    LorappExample::move(example.find(0, ActionKind::send_activation), example.find(0, ActionKind::forward));
    EXPECT_THAT(objection(example.work, example.schedule), HasSubstr("sent before it is computed"));
  }
  {
    LorappExample example;
    const auto send = example.find(2, ActionKind::send_error);
    ASSERT_EQ((send + 1)->kind, ActionKind::free);
    std::iter_swap(send, send + 1);
    EXPECT_THAT(objection(example.work, example.schedule), HasSubstr("freed before its error is sent"));
  }
}

TEST(VerifyPipeline, WantsBackwardAfterForwardAndFreeAfterBackward) {
  {
    LorappExample example;
    std::iter_swap(example.find(2, ActionKind::forward), example.find(2, ActionKind::backward));
    EXPECT_THAT(objection(example.work, example.schedule), HasSubstr("backward before forward"));
  }
  {
    LorappExample example;
    LorappExample::move(example.find(1, ActionKind::free), example.find(1, ActionKind::backward));
    EXPECT_THAT(objection(example.work, example.schedule), HasSubstr("freed before its last computation"));
  }
}

/// Two stages on one rank.
TEST(VerifyPipeline, WantsTheFreeThatHandsAnErrorDownBeforeTheBackwardBelow) {
  PipelineWork work = uniform_work(1, 1, 1, 1);
  work.stage_rank = {0, 0};
  work.microbatches[0].cost.push_back(work.microbatches[0].cost[0]);
  PipelineSchedule schedule = make_schedule(work, gpipe(work));
  EXPECT_EQ(objection(work, schedule), "");
  std::vector<Action>& rank = schedule.ranks[0];  // F0 F1 B1 free B0 free, steps
  ASSERT_EQ(rank[3].kind, ActionKind::free);
  ASSERT_EQ(rank[4].kind, ActionKind::backward);
  std::swap(rank[3], rank[4]);
  EXPECT_THAT(objection(work, schedule), HasSubstr("before the free of the stage above"));
}

TEST(VerifyPipeline, WantsGradientsInAscendingMicrobatches) {
  PipelineWork work = uniform_work(1, 1, 2, 1);
  PipelineSchedule schedule = make_schedule(work, gpipe(work));
  std::vector<Action>& rank = schedule.ranks[0];  // F0 F1 B0 free B1 free step
  ASSERT_EQ(rank[2].kind, ActionKind::backward);
  ASSERT_EQ(rank[4].kind, ActionKind::backward);
  std::swap(rank[2], rank[4]);
  std::swap(rank[3], rank[5]);
  EXPECT_THAT(objection(work, schedule), HasSubstr("backward before microbatch 0 of the same step of job 0"));
}

TEST(VerifyPipeline, WantsChainsForwardInOrderAndBackwardInReverse) {
  PipelineWork work = uniform_work(1, 1, 2, 1);
  work.microbatches[0].chain = work.microbatches[1].chain = 0;
  PipelineSchedule schedule = make_schedule(work, gpipe(work));  // F1 F0 B0 free B1 free step
  EXPECT_EQ(schedule.ranks[0][0].microbatch, 1);
  EXPECT_EQ(schedule.ranks[0][2].microbatch, 0);
  std::swap(schedule.ranks[0][0], schedule.ranks[0][1]);
  EXPECT_THAT(objection(work, schedule), HasSubstr("before the earlier part of its chain"));
}

TEST(VerifyPipeline, WantsOptimizerStepsAfterTheLastBackwardAndBeforeTheNextForward) {
  {
    LorappExample example;
    const auto step = example.find(0, ActionKind::optimizer_step);
    LorappExample::move(step, example.find(0, ActionKind::backward));
    EXPECT_THAT(objection(example.work, example.schedule),
                HasSubstr("before the job's last backward on this stage"));
  }
  {
    LorappExample example;
    const auto step = example.find(0, ActionKind::optimizer_step);
    const auto next = std::find_if(step, example.rank(0).end(), [&](const Action& action) {
      return action.kind == ActionKind::forward && action.hybrid_task == step->job;
    });
    ASSERT_NE(next, example.rank(0).end());
    LorappExample::move(step, next + 1);
    EXPECT_THAT(objection(example.work, example.schedule), HasSubstr("before the optimizer step of job"));
  }
}

TEST(VerifyPipeline, WantsTheWholeNormBeforeAStepOnAHigherStage) {
  LorappExample example;
  // On stage 2 the step could follow the last backward at once, were it not for the norm.
  const auto step = example.find(2, ActionKind::optimizer_step);
  const int32_t job = step->job;
  auto last = example.rank(2).begin();
  for (auto at = example.rank(2).begin(); at != step; ++at) {
    if (at->kind == ActionKind::backward && at->hybrid_task == job) last = at;
  }
  const auto receive = std::find_if(example.rank(2).begin(), step, [&](const Action& action) {
    return action.kind == ActionKind::receive_activation && action.hybrid_task == job &&
           action.microbatch >= 4;
  });
  ASSERT_NE(receive, step);
  if (receive > last) LorappExample::move(step, last + 1);
  EXPECT_THAT(objection(example.work, example.schedule),
              AnyOf(HasSubstr("no message that brings the norm is posted"), HasSubstr("deadlock")));
}

TEST(VerifyPipeline, HoldsMemoryToItsLimit) {
  const PipelineWork work = uniform_work(4, 4, 1, 3, {.kept_bytes = 1000}, {10, 5});
  const PipelineSchedule schedule = make_schedule(work, lorapp(work));
  const PipelineFacts facts = verify(work, schedule);
  EXPECT_NO_THROW(verify(work, schedule, facts.peak_bytes));
  for (size_t rank = 0; rank < 4; ++rank) {
    std::vector<int64_t> limit = facts.peak_bytes;
    limit[rank] -= 1;
    EXPECT_THROW(verify(work, schedule, limit), InternalError) << rank;
  }
}

TEST(VerifyPipeline, RejectsWorkThatContradictsItself) {
  const PipelineWork right = uniform_work(2, 2, 2, 2);
  EXPECT_NO_THROW(check(right));
  const auto wrong = [&](auto&& change) {
    PipelineWork work = right;
    change(work);
    EXPECT_THROW(check(work), InternalError);
  };
  wrong([](PipelineWork& work) { work.stage_rank[1] = 2; });
  wrong([](PipelineWork& work) { work.stage_rank.clear(); });
  wrong([](PipelineWork& work) { work.microbatches[0].cost.pop_back(); });
  wrong([](PipelineWork& work) { work.microbatches[0].cost[0].forward_s = -1; });
  wrong([](PipelineWork& work) {
    work.microbatches[0].cost[0].backward_s = std::numeric_limits<double>::infinity();
  });
  wrong([](PipelineWork& work) { work.microbatches[0].message_bytes.activation = -1; });
  wrong([](PipelineWork& work) { work.microbatches[0].message_bytes.error = -1; });
  wrong([](PipelineWork& work) { work.microbatches[0].jobs.clear(); });
  wrong([](PipelineWork& work) { work.microbatches[0].jobs[0].job = 7; });
  wrong([](PipelineWork& work) { work.microbatches[0].jobs = {{1, 0}, {0, 0}}; });
  wrong([](PipelineWork& work) { work.microbatches[4].jobs[0].step = 2; });
  wrong([](PipelineWork& work) {
    work.microbatches[1].jobs[0].step = 1;
    work.microbatches[4].jobs[0].step = 0;
  });
  wrong([](PipelineWork& work) { work.microbatches[0].chain = work.microbatches[4].chain = 0; });
  wrong([](PipelineWork& work) { work.microbatches[1].chain = work.microbatches[2].chain = 0; });
  wrong([](PipelineWork& work) { work.jobs[1].job = 0; });
  wrong([](PipelineWork& work) { work.jobs[1].lowest_stage = 2; });
}

TEST(PipelineSchedule, IsMadeAgainFromItsOrder) {
  const PipelineWork work = uniform_work(3, 2, 2, 2, {}, {100, 50});
  const PipelineSchedule schedule = make_schedule(work, lorapp(work));
  EXPECT_EQ(make_schedule(work, compute_order(schedule)), schedule);
}

TEST(PipelineSchedule, RejectsOrdersThatAreNotTheWork) {
  const PipelineWork work = uniform_work(2, 1, 2, 1);
  const ComputeOrder right = gpipe(work);
  const auto wrong = [&](auto&& change) {
    ComputeOrder order = right;
    change(order);
    EXPECT_THROW(make_schedule(work, order), InternalError);
  };
  wrong([](ComputeOrder& order) { order.pop_back(); });
  wrong([](ComputeOrder& order) { order[0].pop_back(); });
  wrong([](ComputeOrder& order) { order[0].push_back(order[0][0]); });
  wrong([](ComputeOrder& order) { std::swap(order[0], order[1]); });
  wrong([](ComputeOrder& order) { std::swap(order[1][0], order[1][3]); });
}

TEST(WorkOfStepPlan, TakesChainsJobsAndMessages) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Dice dice(seed);
    const std::vector<BatchShape> round = random_round(dice);
    PackingPolicy policy = random_policy(dice);
    policy.recompute = false;
    policy.layout = Layout::ragged;
    const StepPlan plan = plan_step(round, policy);
    const std::vector<StageCost> cost(plan.microbatches.size() * 3);
    const PipelineWork work =
        work_of(plan, one_stage_per_rank(3), cost, std::vector<int32_t>(round.size(), 0), {4, 2});
    ASSERT_EQ(objection(work, make_schedule(work, lorapp(work))), "") << seed;
    // One rank, one stage: the step plan's own order.
    const PipelineWork alone = work_of(plan, {0}, std::vector<StageCost>(plan.microbatches.size()),
                                       std::vector<int32_t>(round.size(), 0), {4, 2});
    std::vector<Compute> own;
    for (const Action& action : plan.actions) {
      if (action.kind == ActionKind::forward || action.kind == ActionKind::backward) {
        own.push_back({action.microbatch, 0, action.kind == ActionKind::backward});
      }
    }
    ASSERT_EQ(one_f_one_b(alone, BatchBoundary::continuous)[0], own) << seed;
  }
}

}  // namespace
}  // namespace cotune
