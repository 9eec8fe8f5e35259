#include "schedule/stage/launch_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "schedule/random_batches.h"
#include "schedule/small_model.h"

namespace cotune {
namespace {

SubgraphDag chain_of(const std::vector<OperatorTime>& times) {
  SubgraphDag dag;
  for (size_t i = 0; i < times.size(); ++i) {
    Subgraph subgraph{.operators = {static_cast<int32_t>(i)}, .depth = static_cast<int32_t>(i)};
    subgraph.compute_s = times[i].compute_s;
    subgraph.communication_s = times[i].communication_s;
    if (i > 0) subgraph.predecessors = {static_cast<int32_t>(i) - 1};
    dag.push_back(subgraph);
  }
  return dag;
}

std::vector<SubgraphDag> equal_tasks(size_t tasks, size_t subgraphs, OperatorTime time) {
  return std::vector<SubgraphDag>(tasks, chain_of(std::vector<OperatorTime>(subgraphs, time)));
}

double makespan_s(std::span<const SubgraphDag> dags, std::span<const Launch> order,
                  const StreamRates& rates = {}) {
  return simulate_launches(dags, order, rates).makespan_s;
}

/// The layers of one task with adapters, forward or backward, as a list with random times.
SubgraphDag layers_of(Dice& dice, int64_t tensor_parallel, Direction direction) {
  const ModelConfig config = small_model();
  StageShape stage = whole_model(config);
  stage.tensor_parallel = tensor_parallel;
  const std::vector<Operator> operators =
      stage_operators(config, stage, lora_everywhere(config, 0, 8), direction);
  std::vector<OperatorTime> times;
  for (size_t i = 0; i < operators.size(); ++i) {
    times.push_back({static_cast<double>(dice.between(1, 20)), static_cast<double>(dice.between(1, 40))});
  }
  return subgraphs_of(operators, times);
}

TEST(Subgraphs, EndWhereTensorParallelismCommunicates) {
  const ModelConfig config = small_model();
  StageShape stage = whole_model(config);
  stage.tensor_parallel = 2;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const std::vector<Operator> operators =
        stage_operators(config, stage, lora_everywhere(config, 0, 8), direction);
    const SubgraphDag dag = subgraphs_of(operators, std::vector<OperatorTime>(operators.size(), {1, 2}));
    int64_t communicating = 0;
    std::vector<int32_t> seen(operators.size(), 0);
    for (const Subgraph& subgraph : dag) {
      for (const int32_t op : subgraph.operators) {
        ++seen[static_cast<size_t>(op)];
        const bool is_last = op == subgraph.operators.back();
        EXPECT_TRUE(is_last || !operators[static_cast<size_t>(op)].communicates);
      }
      communicating += subgraph.communication_s > 0 ? 1 : 0;
      EXPECT_DOUBLE_EQ(subgraph.compute_s, static_cast<double>(subgraph.operators.size()));
    }
    EXPECT_EQ(seen, std::vector<int32_t>(operators.size(), 1)) << "every operator once";
    // Two all-reduces a layer; the lowest adapted layer's backward needs no input gradient below q, k and v.
    EXPECT_EQ(communicating, direction == Direction::forward ? 6 : 5);
    const auto adapters =
        std::count_if(dag.begin(), dag.end(), [](const Subgraph& s) { return s.is_adapter; });
    EXPECT_EQ(adapters, direction == Direction::forward ? 0 : 12) << "four adapter gradients a layer";
  }
}

TEST(Subgraphs, AreOneWithoutCommunicationButForAdapterGradients) {
  const ModelConfig config = small_model();
  const std::vector<Operator> forward =
      stage_operators(config, whole_model(config), lora_everywhere(config, 0, 8), Direction::forward);
  EXPECT_EQ(subgraphs_of(forward, std::vector<OperatorTime>(forward.size())).size(), 1u);
}

/// reaches[a][b]: b comes after a, by predecessors.
std::vector<std::vector<bool>> reachable(const SubgraphDag& dag) {
  std::vector<std::vector<bool>> reaches(dag.size(), std::vector<bool>(dag.size(), false));
  for (size_t after = 0; after < dag.size(); ++after) {
    for (const int32_t before : dag[after].predecessors) {
      for (size_t first = 0; first < after; ++first) {
        if (first == static_cast<size_t>(before) || reaches[first][static_cast<size_t>(before)]) reaches[first][after] = true;
      }
    }
  }
  return reaches;
}

TEST(Subgraphs, OfABackwardListKeepEveryEdgeOfItsOperatorsAndTheirAdapterGradientsApart) {
  const ModelConfig config = small_model();
  for (const int64_t tensor_parallel : {1, 2}) {
    for (const bool is_sequence_parallel : {false, true}) {
      if (is_sequence_parallel && tensor_parallel == 1) continue;
      SCOPED_TRACE(tensor_parallel);
      StageShape stage = whole_model(config);
      stage.tensor_parallel = tensor_parallel;
      stage.is_sequence_parallel = is_sequence_parallel;
      const std::vector<Operator> operators = stage_operators(config, stage, lora_everywhere(config, 0, 8), Direction::backward);
      const SubgraphDag dag = subgraphs_of(operators, std::vector<OperatorTime>(operators.size(), {1, 2}));
      const auto is_gradient = [&](int32_t op) {
        return operators[static_cast<size_t>(op)].name().ends_with("_adapter_gradient");
      };
      std::vector<size_t> home(operators.size(), dag.size());
      int64_t adapters = 0;
      for (size_t g = 0; g < dag.size(); ++g) {
        adapters += dag[g].is_adapter ? 1 : 0;
        for (const int32_t op : dag[g].operators) {
          EXPECT_EQ(home[static_cast<size_t>(op)], dag.size()) << "an operator twice";
          home[static_cast<size_t>(op)] = g;
          EXPECT_EQ(is_gradient(op), dag[g].is_adapter) << operators[static_cast<size_t>(op)].name();
        }
        EXPECT_TRUE(!dag[g].is_adapter || dag[g].operators.size() == 1);
      }
      EXPECT_EQ(adapters, 4 * config.layer_count) << "four adapter gradients a layer";
      EXPECT_EQ(static_cast<int64_t>(dag.size()) - adapters == 1, tensor_parallel == 1) << "communication alone cuts what computes";

      const auto reaches = reachable(dag);
      int64_t between = 0;
      for (size_t op = 0; op < operators.size(); ++op) {
        ASSERT_LT(home[op], dag.size()) << operators[op].name();
        for (const int32_t before : operators[op].predecessors) {
          const size_t from = home[static_cast<size_t>(before)];
          if (from == home[op]) continue;
          EXPECT_TRUE(reaches[from][home[op]]) << operators[static_cast<size_t>(before)].name() << " before " << operators[op].name();
          ++between;
        }
      }
      EXPECT_GE(between, adapters);

      // The subgraph that comes next of the layers reuses what the gradients behind the one before it read.
      std::vector<int32_t> gradients;
      int64_t waited_for = 0;
      for (size_t g = 0; g < dag.size(); ++g) {
        if (dag[g].is_adapter) {
          gradients.push_back(static_cast<int32_t>(g));
          continue;
        }
        for (const int32_t gradient : gradients) {
          EXPECT_TRUE(std::ranges::count(dag[g].predecessors, gradient)) << "subgraph " << g << " does not wait for gradient " << gradient;
          ++waited_for;
        }
        gradients.clear();
      }
      // Nothing comes behind those that what is last of the layers has made.
      EXPECT_EQ(waited_for + static_cast<int64_t>(gradients.size()), adapters);
      EXPECT_EQ(waited_for > 0, tensor_parallel > 1);
    }
  }
}

TEST(LaunchOrder, HidesCommunicationBehindOtherTasks) {
  // The reference's simulated cases: four subgraphs a task, compute 1.
  const auto priority = [](size_t tasks, double communication) {
    const std::vector<SubgraphDag> dags = equal_tasks(tasks, 4, {1, communication});
    return makespan_s(dags, launch_by_priority(dags));
  };
  const auto serial = [](size_t tasks, double communication) {
    const std::vector<SubgraphDag> dags = equal_tasks(tasks, 4, {1, communication});
    return makespan_s(dags, task_by_task(dags), {.overlap = false});
  };
  EXPECT_DOUBLE_EQ(serial(4, 0.5), 24.0);
  EXPECT_DOUBLE_EQ(priority(4, 0.5), 16.5);
  EXPECT_DOUBLE_EQ(serial(4, 1.0), 32.0);
  EXPECT_DOUBLE_EQ(priority(4, 1.0), 17.0);
  EXPECT_DOUBLE_EQ(serial(1, 0.5), priority(1, 0.5)) << "one task has nothing to hide behind";
}

TEST(LaunchOrder, ApproachesTheLongerOfTheTwoStreams) {
  for (const double communication : {0.25, 0.5, 1.0, 2.0}) {
    const std::vector<SubgraphDag> dags = equal_tasks(8, 40, {1, communication});
    const double serial = makespan_s(dags, task_by_task(dags), {.overlap = false});
    const double bound = (1 + communication) / std::max(1.0, communication);
    EXPECT_NEAR(serial / choose_launch_order(dags).overlap.makespan_s / bound, 1, 0.01) << communication;
  }
}

TEST(LaunchOrder, IsTopologicalAndNeverLongerThanSerialForThousandsOfLayers) {
  double priority_sum = 0;
  double chosen_sum = 0;
  for (uint64_t seed = 0; seed < 10'000; ++seed) {
    Dice dice(seed);
    std::vector<SubgraphDag> dags;
    const int64_t tasks = dice.between(1, 5);
    const auto direction = seed % 2 == 0 ? Direction::forward : Direction::backward;
    for (int64_t task = 0; task < tasks; ++task) dags.push_back(layers_of(dice, 2, direction));
    const StreamRates rates{.communication_share = seed % 3 == 0 ? 0.2 : 0};
    // simulate_launches checks that every order is topological and complete.
    const double serial = makespan_s(dags, task_by_task(dags), {.overlap = false});
    const double priority = makespan_s(dags, launch_by_priority(dags), rates);
    const double remaining = makespan_s(dags, launch_by_remaining_path(dags, rates), rates);
    const ChosenLaunch chosen = choose_launch_order(dags, rates);
    ASSERT_LE(priority, serial + 1e-9) << seed;
    ASSERT_LE(chosen.overlap.makespan_s, std::min(priority, remaining) + 1e-9) << seed;
    ASSERT_EQ(makespan_s(dags, chosen.order, rates), chosen.overlap.makespan_s);
    priority_sum += priority;
    chosen_sum += chosen.overlap.makespan_s;
  }
  EXPECT_LT(chosen_sum, 0.99 * priority_sum) << "the better order is better on the whole";
}

/// The least makespan over all interleavings.
double optimum_s(const std::vector<SubgraphDag>& dags, std::vector<int32_t>& next,
                 std::vector<Launch>& order) {
  double best = std::numeric_limits<double>::infinity();
  bool is_complete = true;
  for (size_t task = 0; task < dags.size(); ++task) {
    if (next[task] == static_cast<int32_t>(dags[task].size())) continue;
    is_complete = false;
    order.push_back({static_cast<int32_t>(task), next[task]++});
    best = std::min(best, optimum_s(dags, next, order));
    order.pop_back();
    --next[task];
  }
  return is_complete ? makespan_s(dags, order) : best;
}

TEST(LaunchOrder, IsNearTheOptimumOfAllInterleavingsOfSmallCases) {
  double priority_gap = 0;
  double chosen_gap = 0;
  constexpr int64_t cases = 150;
  for (uint64_t seed = 0; seed < cases; ++seed) {
    Dice dice(seed);
    std::vector<SubgraphDag> dags;
    for (int64_t task = dice.between(2, 3); task-- > 0;) {
      std::vector<OperatorTime> times;
      for (int i = 0; i < 3; ++i) {
        times.push_back({static_cast<double>(dice.between(1, 20)), static_cast<double>(dice.between(0, 20))});
      }
      dags.push_back(chain_of(times));
    }
    std::vector<int32_t> next(dags.size(), 0);
    std::vector<Launch> order;
    const double optimum = optimum_s(dags, next, order);
    const double chosen = choose_launch_order(dags).overlap.makespan_s;
    ASSERT_GE(chosen, optimum - 1e-9);
    priority_gap += makespan_s(dags, launch_by_priority(dags)) / optimum - 1;
    chosen_gap += chosen / optimum - 1;
  }
  RecordProperty("priority_gap", std::to_string(priority_gap / cases));
  RecordProperty("chosen_gap", std::to_string(chosen_gap / cases));
  EXPECT_LT(chosen_gap / cases, 0.05);
  EXPECT_LT(chosen_gap, 0.25 * priority_gap);
}

TEST(LaunchOrder, OfOneTaskAndOfNoneIsPlain) {
  const std::vector<SubgraphDag> one = equal_tasks(1, 3, {1, 1});
  EXPECT_EQ(choose_launch_order(one).order, task_by_task(one));
  EXPECT_EQ(choose_launch_order({}).overlap.makespan_s, 0);
}

TEST(StageOverlap, SharesTheDeviceWhileSomethingCommunicates) {
  // Task 0 computes 1 and communicates 4; task 1 computes 10 beside it.
  const std::vector<SubgraphDag> dags{chain_of({{1, 4}}), chain_of({{10, 0}})};
  const std::vector<Launch> order{{0, 0}, {1, 0}};
  EXPECT_DOUBLE_EQ(makespan_s(dags, order), 11);
  EXPECT_DOUBLE_EQ(makespan_s(dags, order, {.overlap = false}), 15);
  EXPECT_DOUBLE_EQ(makespan_s(dags, order, {.communication_share = 0.5}), 13) << "4 s give 2 s of work";
  EXPECT_DOUBLE_EQ(makespan_s(dags, order, {.communication_share = 0.5, .communication_rate = 2}), 12);
  const StageOverlap overlap = simulate_launches(dags, order);
  EXPECT_DOUBLE_EQ(overlap.compute_busy_s, 11);
}

TEST(StageOverlap, ChargesEveryCommunicationBesideAComputation) {
  // Two communications of 1 s lie one after the other beside the last computation.
  const std::vector<SubgraphDag> dags{chain_of({{1, 1}}), chain_of({{0, 1}}), chain_of({{10, 0}})};
  const std::vector<Launch> order{{0, 0}, {1, 0}, {2, 0}};
  EXPECT_DOUBLE_EQ(makespan_s(dags, order, {.communication_share = 0.5}), 12);
}

TEST(StageOverlap, RejectsOrdersThatAreNotTopological) {
  const std::vector<SubgraphDag> dags = equal_tasks(2, 2, {1, 1});
  const auto rejects = [&](const std::vector<Launch>& order) {
    EXPECT_THROW(simulate_launches(dags, order), InternalError);
  };
  rejects({{0, 0}, {0, 1}, {1, 0}});
  rejects({{0, 1}, {0, 0}, {1, 0}, {1, 1}});
  rejects({{0, 0}, {0, 0}, {1, 0}, {1, 1}});
  rejects({{0, 0}, {0, 1}, {2, 0}, {1, 1}});
  EXPECT_THROW(simulate_launches(dags, task_by_task(dags), {.communication_share = 1}), InternalError);
  EXPECT_THROW(simulate_launches(dags, task_by_task(dags), {.communication_rate = 0}), InternalError);
}

}  // namespace
}  // namespace cotune
