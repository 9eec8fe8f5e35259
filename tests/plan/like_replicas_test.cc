// Task-Sequential's and Task-Fused's replicas (LB-8, LB-9): of all configurations that hold the longest row, the one whose slowest replica
// ends first, by Table 3's rates written out again and plain loops.
#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "plan/cost/published_rates.h"
#include "plan/deployment/system_deployments.h"

namespace cotune {
namespace {

/// LobRA's Table 3, in the order of published_7b_configurations: thousands of tokens per device and second at 2K, 4K, 8K and 16K; 0: out of memory.
struct Table3Row {
  int64_t tensor_parallel, pipeline_stages;
  double thousands[4];
  int64_t devices() const { return tensor_parallel * pipeline_stages; }
  int64_t chunk_tokens() const {
    int64_t most = 0;
    for (size_t k = 0; k < 4; ++k) most = thousands[k] > 0 ? int64_t{2048} << k : most;
    return most;
  }
};
constexpr Table3Row table3[] = {
    {1, 1, {5.11, 0, 0, 0}},          {2, 1, {4.30, 4.12, 0, 0}},
    {1, 2, {4.88, 0, 0, 0}},          {4, 1, {3.63, 3.50, 3.25, 0}},
    {2, 2, {4.15, 3.98, 0, 0}},       {1, 4, {5.03, 4.78, 0, 0}},
    {8, 1, {2.79, 2.71, 2.56, 2.33}}, {4, 2, {3.48, 3.34, 3.12, 0}},
    {2, 4, {4.27, 4.10, 3.79, 0}},    {1, 8, {4.45, 4.25, 0, 0}},
};

/// The slowest of as many replicas as the devices hold: its rows, and the chunks that fill and drain its pipeline.
double seconds_of_like(const Table3Row& row, size_t length, int64_t rows, int64_t devices) {
  const int64_t tokens = int64_t{2048} << length, replicas = devices / row.devices(), of_a_chunk = row.chunk_tokens() / tokens;
  const double row_s = static_cast<double>(tokens) / (static_cast<double>(row.devices()) * 1000 * row.thousands[length]);
  const int64_t most_rows = (rows + replicas - 1) / replicas;
  return static_cast<double>(most_rows) * row_s + static_cast<double>((row.pipeline_stages - 1) * of_a_chunk) * row_s;
}

TEST(DeployAlike, TakesTheFastestOfAllConfigurationsThatHoldAStepOfOneLength) {
  constexpr int64_t devices = 16;
  std::set<size_t> taken;
  for (const size_t length : {0, 1, 3}) {  // 2K, 4K, 16K
    for (const int64_t rows : {1, 5, 37, 64, 300}) {
      SCOPED_TRACE(testing::Message() << rows << " rows of " << (2048 << length));
      size_t best = 0;
      double least_s = std::numeric_limits<double>::infinity();
      std::vector<std::vector<int64_t>> expected;
      for (size_t i = 0; i < std::size(table3); ++i) {
        if (table3[i].thousands[length] == 0) continue;
        expected.emplace_back(std::size(table3), 0)[i] = devices / table3[i].devices();
        const double seconds = seconds_of_like(table3[i], length, rows, devices);
        if (seconds < least_s) best = i, least_s = seconds;
      }
      const std::vector<int64_t> lengths{int64_t{2048} << length};
      const StepWork work{bucket_costs(published_7b_configurations(), lengths), {rows}};
      EXPECT_EQ(like_replicas(work.costs, work.sequences, devices), expected);
      const Deployment plan = deploy_alike(work, devices);
      std::vector<int64_t> replicas(std::size(table3), 0);
      replicas[best] = devices / table3[best].devices();
      EXPECT_EQ(plan.replicas, replicas);
      EXPECT_NEAR(plan.dispatch.makespan, least_s, 1e-9 * least_s);
      taken.insert(best);
    }
  }
  EXPECT_GE(taken.size(), 3u) << "which is the fastest depends on length and rows";
}

TEST(DeployAlike, TakesTheFastestOfAllConfigurationsThatHoldAStepOfSeveralLengths) {
  constexpr int64_t devices = 16;
  const std::vector<int64_t> lengths{2048, 4096, 8192};
  for (const std::vector<int64_t>& rows : {std::vector<int64_t>{200, 40, 3}, {3, 3, 3}, {0, 0, 50}, {500, 1, 1}}) {
    double least_s = std::numeric_limits<double>::infinity();
    for (const Table3Row& each : table3) {
      if (each.thousands[2] == 0) continue;
      double seconds = 0, fill = 0;
      for (size_t j = 0; j < 3; ++j) {
        // A replica waits for the largest chunk that its configuration may have, whether the step has such rows or not.
        fill = std::max(fill, seconds_of_like(each, j, 0, devices));
        seconds += seconds_of_like(each, j, rows[j], devices) - seconds_of_like(each, j, 0, devices);
      }
      least_s = std::min(least_s, seconds + fill);
    }
    const Deployment plan = deploy_alike({bucket_costs(published_7b_configurations(), lengths), rows}, devices);
    EXPECT_NEAR(plan.dispatch.makespan, least_s, 1e-9 * least_s);
  }
}

}  // namespace
}  // namespace cotune
