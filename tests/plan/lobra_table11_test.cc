// LobRA's Table 11 (seconds of a step of 64 rows of one length on 16 devices) and what its formulas make of it: LB-11, LB-17, LB-30.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <optional>
#include <vector>

#include "plan/cost/pipeline_seconds.h"
#include "plan/cost/published_rates.h"
#include "plan/deployment/deployment.h"
#include "plan/deployment/replica_counts.h"

namespace cotune {
namespace {

using Counts = std::vector<int64_t>;

struct Row {
  int64_t tensor_parallel, stages, chunks;  // chunks: of one row each, on each replica
  std::map<int64_t, double> seconds;        // of LobRA's own step, by tokens of a row
};

const std::vector<Row>& table_11() {
  static const std::vector<Row> rows = {
      {1, 1, 4, {{2048, 1.778}}},
      {1, 2, 8, {{2048, 1.978}}},
      {1, 4, 16, {{2048, 2.131}, {4096, 4.141}}},
      {1, 8, 32, {{2048, 2.308}, {4096, 4.492}}},
      {2, 1, 8, {{2048, 2.414}, {4096, 4.297}}},
      {2, 2, 16, {{2048, 2.611}, {4096, 4.612}}},
      {2, 4, 32, {{2048, 2.718}, {4096, 4.915}}},
      {2, 8, 64, {{2048, 3.040}, {4096, 5.391}, {8192, 10.611}}},
      {4, 1, 16, {{2048, 3.395}, {4096, 5.608}, {8192, 10.530}}},
      {4, 2, 32, {{2048, 3.626}, {4096, 5.911}, {8192, 11.143}}},
      {4, 4, 64, {{2048, 3.793}, {4096, 6.255}, {8192, 11.770}}},
      {8, 1, 32, {{2048, 5.691}, {4096, 8.649}, {8192, 14.769}, {16384, 29.271}}},
      {8, 2, 64, {{2048, 5.887}, {4096, 9.032}, {8192, 15.464}, {16384, 30.468}}},
  };
  return rows;
}

/// Seconds of one chunk of one row on the whole model.
std::optional<double> chunk_seconds(int64_t tensor_parallel, int64_t tokens) {
  for (const Row& row : table_11()) {
    if (row.tensor_parallel != tensor_parallel || row.stages != 1 || !row.seconds.contains(tokens)) continue;
    return row.seconds.at(tokens) / static_cast<double>(row.chunks);
  }
  return std::nullopt;
}

TEST(Table11, IsForetoldByTheFormulaOfEqualChunksFromItsRowsWithoutPipeline) {
  int64_t compared = 0;
  for (const Row& row : table_11()) {
    if (row.stages == 1) continue;
    for (const auto& [tokens, measured] : row.seconds) {
      const std::optional<double> whole = chunk_seconds(row.tensor_parallel, tokens);
      if (!whole) continue;
      const double predicted = even_chunks_seconds(*whole / static_cast<double>(row.stages), row.chunks, row.stages);
      const double error = predicted / measured - 1;
      EXPECT_GE(error, -0.1195) << row.tensor_parallel << " " << row.stages << " " << tokens;
      EXPECT_LE(error, 0.0115) << row.tensor_parallel << " " << row.stages << " " << tokens;
      if (row.tensor_parallel != 2 || row.stages != 8) {
        EXPECT_LE(std::abs(error), 0.0635) << row.tensor_parallel << " " << row.stages << " " << tokens;
      }
      ++compared;
    }
  }
  EXPECT_EQ(compared, 19);
}

/// Fig. 4's sequences on the replicas without pipeline, priced by Table 11.
struct TableExample {
  TableExample() {
    const std::vector<int64_t> lengths = {2048, 4096, 8192, 16384};
    const std::map<int64_t, int64_t> longest = {{1, 2048}, {2, 4096}, {4, 8192}, {8, 16384}};
    for (const auto& [tensor_parallel, tokens] : longest) {
      Configuration each{.tensor_parallel = tensor_parallel, .chunk_tokens = tokens};
      const int64_t degree = tensor_parallel;
      each.chunk_seconds = [degree](int64_t sequences, int64_t row) { return static_cast<double>(sequences) * *chunk_seconds(degree, row); };
      costs.push_back(bucket_costs(each, lengths));
    }
  }
  std::vector<BucketCosts> costs;
  Counts sequences = {196, 62, 16, 4};
};

TEST(Table11, GivesThePapersPlanOfTheWorkedExample) {
  const TableExample example;
  const DispatchLimits exact{.gap = 0, .nodes = 10'000'000};
  const Deployment plan = plan_deployment(example.costs, example.sequences, 16, {.filter = PlanFilter::none, .gap = 0, .dispatch = exact});
  EXPECT_EQ(plan.replicas, (Counts{4, 2, 0, 1}));
  EXPECT_NEAR(plan.dispatch.makespan, 17.315, 0.0005);
  double second = INFINITY;
  for_each_plan(Counts{1, 2, 4, 8}, 16, [&](std::span<const int64_t> replicas) {
    const Counts other(replicas.begin(), replicas.end());
    if (other.back() > 0 && other != plan.replicas) second = std::min(second, dispatch_balanced(example.costs, other, example.sequences, exact).makespan);
    return true;
  });
  EXPECT_NEAR(second, 18.149, 0.0005);
  EXPECT_EQ(dispatch_balanced(example.costs, Counts{2, 3, 0, 1}, example.sequences, exact).makespan, second);
}

/// Theorem 1: Σ Nᵢ tᵢ / N of greedy dispatch.
double theorem_1(const std::vector<BucketCosts>& costs, std::span<const int64_t> replicas, const Counts& sequences) {
  const Dispatch greedy = dispatch_greedily(costs, Counts(replicas.begin(), replicas.end()), sequences);
  double sum = 0, devices = 0;
  for (size_t i = 0; i < replicas.size(); ++i) {
    sum += static_cast<double>(replicas[i] * costs[i].devices) * greedy.seconds[i];
    devices += static_cast<double>(replicas[i] * costs[i].devices);
  }
  return sum / devices;
}

struct Bounds {
  size_t feasible = 0, kept = 0;
  double least = INFINITY, of_the_best = 0;
};

/// Over all plans on all 16 devices; that no bound is above what the plan takes is checked.
Bounds bounds_of(const std::vector<BucketCosts>& costs, const Counts& sequences) {
  const DispatchLimits exact{.gap = 0, .nodes = 10'000'000};
  std::map<Counts, double> bounds;
  for_each_plan(Counts{1, 2, 4, 8}, 16, [&](std::span<const int64_t> replicas) {
    if (replicas.back() == 0) return true;  // the longest rows fit nowhere
    const Counts plan(replicas.begin(), replicas.end());
    const double bound = theorem_1(costs, replicas, sequences);
    EXPECT_LE(bound, dispatch_balanced(costs, plan, sequences, exact).makespan + 1e-9);
    bounds[plan] = bound;
    return true;
  });
  Bounds all{.feasible = bounds.size(), .of_the_best = bounds.at({4, 2, 0, 1})};
  for (const auto& [plan, bound] : bounds) all.least = std::min(all.least, bound);
  for (const auto& [plan, bound] : bounds) all.kept += bound <= 1.15 * all.least ? 1 : 0;
  return all;
}

TEST(Theorem1, BoundsEveryPlanOfTheWorkedExampleByTable3) {
  const std::vector<int64_t> lengths = {2048, 4096, 8192, 16384};
  std::vector<BucketCosts> costs;
  for (const Configuration& each : published_7b_configurations()) {
    if (each.pipeline_stages == 1) costs.push_back(bucket_costs(each, lengths));
  }
  const Bounds all = bounds_of(costs, {196, 62, 16, 4});
  EXPECT_EQ(all.feasible, 10u);
  EXPECT_EQ(all.kept, 7u);
  EXPECT_NEAR(all.least, 13.041, 0.0005);
  EXPECT_NEAR(all.of_the_best, 13.720, 0.0005);
}

TEST(Theorem1, BoundsEveryPlanOfTheWorkedExampleByTable11) {
  const Bounds all = bounds_of(TableExample().costs, {196, 62, 16, 4});
  EXPECT_EQ(all.feasible, 10u);
  EXPECT_EQ(all.kept, 6u);
  EXPECT_NEAR(all.least, 14.070, 0.0005);
  EXPECT_NEAR(all.of_the_best, 15.130, 0.0005);
}

}  // namespace
}  // namespace cotune
