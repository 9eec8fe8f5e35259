#include "schedule/pipeline/clocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "schedule/pipeline/random_work.h"
#include "schedule/pipeline/simulate.h"
#include "schedule/pipeline/verify_pipeline.h"

namespace cotune {
namespace {

/// Layers whose times differ from one microbatch and stage to the next; an adapter gradient after each second subgraph of a backward.
StageGraphs random_graphs(const PipelineWork& work, size_t microbatch, size_t stage) {
  Dice dice(microbatch * 97 + stage + 1);
  const auto layers = [&](bool backward) {
    SubgraphDag dag;
    int32_t previous = -1;
    for (int32_t i = 0, depth = 0; i < 6; ++i, ++depth) {
      Subgraph& next = dag.emplace_back();
      next.depth = depth;
      next.compute_s = static_cast<double>(dice.between(1, 9));
      next.communication_s = static_cast<double>(dice.between(0, 9));
      if (previous >= 0) next.predecessors = {previous};
      if (previous >= 0 && dag[static_cast<size_t>(previous) + 1].is_adapter) next.predecessors.push_back(previous + 1);
      previous = static_cast<int32_t>(dag.size()) - 1;
      if (!backward || i % 2 == 0) continue;
      dag.push_back({.predecessors = {previous}, .depth = depth + 1, .is_adapter = true, .site = i, .compute_s = static_cast<double>(dice.between(1, 4))});
    }
    return dag;
  };
  StageGraphs graphs{layers(false), {}};
  if (lowest_stage(work, work.microbatches[microbatch]) <= static_cast<int32_t>(stage)) graphs.backward = layers(true);
  return graphs;
}

MicrobatchGraphs graphs_of(const PipelineWork& work) {
  return [&work](size_t microbatch, size_t stage) { return random_graphs(work, microbatch, stage); };
}

/// Jobs that are each a hybrid task, of so many microbatches a round.
PipelineWork jobs_of(std::vector<int64_t> microbatches, int64_t rounds = 1, int32_t stages = 1) {
  PipelineWork work{.rank_count = stages, .stage_rank = one_stage_per_rank(stages)};
  for (size_t job = 0; job < microbatches.size(); ++job) work.jobs.push_back({.job = static_cast<int32_t>(job)});
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t job = 0; job < microbatches.size(); ++job) {
      const auto index = static_cast<int32_t>(job);
      const PipelineMicrobatch one{.hybrid_task = index, .round = round, .jobs = {{index, round}}, .message_bytes = {8 * (index + 1), 4 * (index + 1)},
                                   .cost = std::vector<StageCost>(static_cast<size_t>(stages))};
      work.microbatches.insert(work.microbatches.end(), static_cast<size_t>(microbatches[job]), one);
    }
  }
  return work;
}

std::vector<std::vector<int32_t>> members_of(const std::vector<PipelineClock>& clocks) {
  std::vector<std::vector<int32_t>> members;
  for (const PipelineClock& clock : clocks) members.push_back(clock.microbatches);
  return members;
}

using Members = std::vector<std::vector<int32_t>>;

TEST(Clocks, PairTheMicrobatchesOfHybridTasksAndThenThoseThatAreLeft) {
  EXPECT_EQ(members_of(clocks_of(jobs_of({2, 2}))), (Members{{0, 2}, {1, 3}}));
  EXPECT_EQ(members_of(clocks_of(jobs_of({4, 1}))), (Members{{0, 4}, {1, 2}, {3}}));
  EXPECT_EQ(members_of(clocks_of(jobs_of({1, 1, 1}))), (Members{{0, 1}, {2}}));
  EXPECT_EQ(members_of(clocks_of(jobs_of({1}, 3))), (Members{{0}, {1}, {2}})) << "rounds follow each other";
  EXPECT_EQ(members_of(clocks_of(jobs_of({2, 2}), 1)), (Members{{0}, {1}, {2}, {3}}));
}

TEST(Clocks, LeaveMicrobatchesOfChainsAlone) {
  PipelineWork work = jobs_of({3, 1});
  work.microbatches[0].chain = work.microbatches[1].chain = 0;
  EXPECT_EQ(members_of(clocks_of(work)), (Members{{0}, {1}, {2, 3}}));
}

TEST(Clocks, KeepTheOrderOfEveryJobsMicrobatches) {
  // Microbatch 2 shares a job with microbatch 1, which comes before it: it may not go with microbatch 0.
  PipelineWork work = jobs_of({1, 2});
  work.microbatches[2].jobs = {{1, 0}};
  EXPECT_EQ(members_of(clocks_of(work)), (Members{{0, 1}, {2}}));
}

TEST(Clocks, OfBucketsPairTheLongestTaskWithTheShortest) {
  PipelineWork work = jobs_of({2, 1, 1, 2}, 2);
  const std::vector<double> seconds{4, 3, 2, 1};
  for (PipelineMicrobatch& each : work.microbatches) each.cost.front().forward_s = seconds[static_cast<size_t>(each.hybrid_task)];
  EXPECT_EQ(members_of(bucketed_clocks(work, 0.5)), (Members{{0, 4}, {1, 5}, {2, 3}, {6, 10}, {7, 11}, {8, 9}}));
  EXPECT_EQ(members_of(bucketed_clocks(work, 0.75)), (Members{{0}, {1}, {2}, {3, 4}, {5}, {6}, {7}, {8}, {9, 10}, {11}}));
  EXPECT_EQ(members_of(bucketed_clocks(work, 1)), members_of(clocks_of(work, 1)));
  work.microbatches[0].chain = work.microbatches[1].chain = 0;
  EXPECT_EQ(members_of(bucketed_clocks(work, 0.5)), (Members{{0}, {1}, {2}, {3, 4}, {5}, {6, 10}, {7, 11}, {8, 9}}));
}

TEST(Clocks, OfAPlansBucketsPairTheTasksOfEach) {
  PipelineWork work = jobs_of({2, 1, 1, 2}, 2);
  const std::vector<double> seconds{4, 3, 2, 1};
  for (PipelineMicrobatch& each : work.microbatches) each.cost.front().forward_s = seconds[static_cast<size_t>(each.hybrid_task)];
  EXPECT_EQ(members_of(planned_clocks(work, {{0, 2}, {1}})), (Members{{0, 3}, {1}, {2}, {4}, {5}, {6, 9}, {7}, {8}, {10}, {11}}))
      << "the last job is in no bucket";
  EXPECT_EQ(members_of(planned_clocks(work, {{0, 1, 2}, {3}})), (Members{{0}, {1}, {2, 3}, {4}, {5}, {6}, {7}, {8, 9}, {10}, {11}}))
      << "of three the longest is alone";
  EXPECT_EQ(members_of(planned_clocks(work, {{0}, {1}, {2}, {3}})), members_of(clocks_of(work, 1)));
}

TEST(Clocks, HideCommunicationAndCostWhatTheirLaunchesTake) {
  const PipelineWork work = jobs_of({1, 1});
  const MicrobatchGraphs graphs = [](size_t, size_t) {
    SubgraphDag dag;
    for (int32_t i = 0; i < 4; ++i) {
      dag.push_back({.depth = i, .compute_s = 1, .communication_s = 1});
      if (i > 0) dag.back().predecessors = {i - 1};
    }
    return StageGraphs{dag, dag};
  };
  std::vector<PipelineClock> pairs = clocks_of(work), alone = clocks_of(work, 1);
  EXPECT_DOUBLE_EQ(launch_clocks(work, pairs, graphs).microbatches.front().cost.front().forward_s, 9);
  EXPECT_DOUBLE_EQ(launch_clocks(work, alone, graphs).microbatches.front().cost.front().forward_s, 8) << "each";
  const std::vector<Launch> expected{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}, {0, 3}, {1, 3}};
  EXPECT_EQ(pairs.front().stages.front().forward, expected);
}

TEST(Clocks, OfAnyWorkAreProvenAndSoAreTheirSchedules) {
  size_t pairs = 0, shared = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Dice dice(seed);
    const PipelineWork work = random_work(dice, 1 + static_cast<int32_t>(seed % 2));
    const MicrobatchGraphs graphs = graphs_of(work);
    std::vector<PipelineClock> clocks =
        seed % 8 == 7   ? planned_clocks(work, {{0, 1}, {2}})
        : seed % 4 == 3 ? bucketed_clocks(work, dice.between(0, 1) > 0 ? 0.5 : 0.75) : clocks_of(work, static_cast<int32_t>(2 + seed % 3));
    const PipelineWork merged = launch_clocks(work, clocks, graphs, {.communication_share = 0.1});
    ASSERT_NO_THROW(verify(work, clocks, graphs)) << seed;
    const PipelineSchedule schedule = make_schedule(merged, gpipe(merged), {});
    ASSERT_NO_THROW(verify(merged, schedule)) << seed;
    const std::vector<std::vector<Action>> ranks = actions_of_microbatches(schedule, work, clocks);

    using Message = std::tuple<int32_t, int32_t, int64_t, int32_t, int64_t>;  // microbatch, stage, bytes, job, step
    std::map<std::tuple<int32_t, int32_t, bool>, std::vector<Message>> sent, received;
    std::multiset<std::tuple<int32_t, int32_t, bool>> computed;
    std::multiset<std::pair<int32_t, int32_t>> freed;
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto own = static_cast<int32_t>(rank);
      for (const Action& action : ranks[rank]) {
        const Message message{action.microbatch, action.stage, action.bytes, action.job, action.job_step};
        switch (action.kind) {
          case ActionKind::send_activation: sent[{own, action.peer, false}].push_back(message); break;
          case ActionKind::send_error: sent[{own, action.peer, true}].push_back(message); break;
          case ActionKind::receive_activation: received[{action.peer, own, false}].push_back(message); break;
          case ActionKind::receive_error: received[{action.peer, own, true}].push_back(message); break;
          case ActionKind::free: freed.insert({action.microbatch, action.stage}); break;
          case ActionKind::forward:
          case ActionKind::backward: {
            const bool backward = action.kind == ActionKind::backward;
            const PipelineClock& clock = clocks.at(static_cast<size_t>(action.clock));
            const StageLaunches& launches = clock.stages[static_cast<size_t>(action.stage)];
            std::set<int32_t> tasks;
            for (const Launch& launch : backward ? launches.backward : launches.forward) tasks.insert(launch.task);
            EXPECT_EQ(action.microbatch, clock.microbatches[static_cast<size_t>(*tasks.begin())]);
            for (const int32_t task : tasks) computed.insert({clock.microbatches[static_cast<size_t>(task)], action.stage, backward});
            break;
          }
          default: break;
        }
      }
    }
    EXPECT_EQ(sent, received) << seed;
    for (int32_t m = 0; m < static_cast<int32_t>(work.microbatches.size()); ++m) {
      for (int32_t stage = 0; stage < work.stage_count(); ++stage) {
        const bool has_backward = lowest_stage(work, work.microbatches[static_cast<size_t>(m)]) <= stage;
        EXPECT_EQ(computed.count({m, stage, false}), 1u);
        EXPECT_EQ(computed.count({m, stage, true}), has_backward ? 1u : 0u);
        EXPECT_EQ(freed.count({m, stage}), 1u);
      }
    }
    for (const PipelineClock& clock : clocks) {
      pairs += clock.microbatches.size() > 1 ? 1 : 0;
      std::vector<SubgraphDag> backward;
      for (const int32_t m : clock.microbatches) backward.push_back(graphs(static_cast<size_t>(m), work.stage_rank.size() - 1).backward);
      shared += launch_edges(work, clock, backward).empty() ? 0 : 1;
    }
  }
  EXPECT_GT(pairs, 300u);
  EXPECT_GT(shared, 100u) << "some of them with a job in common";
}

TEST(Clocks, ThatAreWrongAreFound) {
  const PipelineWork work = jobs_of({3, 2}, 2);
  const MicrobatchGraphs graphs = graphs_of(work);
  std::vector<PipelineClock> right = clocks_of(work);
  launch_clocks(work, right, graphs);
  ASSERT_NO_THROW(verify(work, right, graphs));
  const auto rejects = [&](const char* what, auto change) {
    std::vector<PipelineClock> wrong = right;
    change(wrong);
    EXPECT_THROW(verify(work, wrong, graphs), InternalError) << what;
  };
  rejects("a microbatch is missing", [](auto& clocks) { clocks.back().microbatches.pop_back(); });
  rejects("a microbatch is there twice", [](auto& clocks) { clocks[1].microbatches = clocks[0].microbatches; });
  rejects("a clock of two rounds", [](auto& clocks) { std::swap(clocks[2].microbatches, clocks[3].microbatches); });
  rejects("a job's microbatches change places", [](auto& clocks) { std::swap(clocks[0], clocks[1]); });
  rejects("a launch is missing", [](auto& clocks) { clocks[0].stages[0].forward.pop_back(); });
  rejects("a launch is there twice", [](auto& clocks) { clocks[0].stages[0].backward[1] = clocks[0].stages[0].backward[0]; });
  rejects("a launch before its predecessor", [](auto& clocks) { std::ranges::reverse(clocks[0].stages[0].forward); });
  rejects("no launches of a stage", [](auto& clocks) { clocks[0].stages.clear(); });
  PipelineWork chained = work;
  for (const int32_t m : right.front().microbatches) chained.microbatches[static_cast<size_t>(m)].chain = 0;
  EXPECT_THROW(verify(chained, right, graphs), InternalError);
}

TEST(Clocks, AddGradientsOfASharedJobInTheOrderOfItsMicrobatches) {
  const PipelineWork work = jobs_of({2});
  const MicrobatchGraphs graphs = graphs_of(work);
  std::vector<PipelineClock> clocks = clocks_of(work);
  ASSERT_EQ(members_of(clocks), (Members{{0, 1}}));
  launch_clocks(work, clocks, graphs);
  verify(work, clocks, graphs);
  const std::vector<SubgraphDag> backward{graphs(0, 0).backward, graphs(1, 0).backward};
  std::vector<Launch>& order = clocks.front().stages.front().backward;
  // The later microbatch first: each one's own order is kept, that of the job's sums is not.
  order = task_by_task(backward);
  std::ranges::stable_sort(order, std::ranges::greater(), &Launch::task);
  EXPECT_THROW(verify(work, clocks, graphs), InternalError);
}

}  // namespace
}  // namespace cotune
