#include "plan/cost/replica_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

namespace cotune {
namespace {

/// Bottlenecks on the lower layers alone, which ranks that divide tokens compute on their slices.
JobShape job_below(int64_t layers, int64_t width) {
  JobShape job{.name = "below", .batch_size = 8, .lengths = histogram_of(std::vector<int64_t>{512})};
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const Projection projection : {Projection::o, Projection::down}) {
      job.adapters.push_back({0, AdapterMethod::bottleneck, layer, projection, width, 0});
    }
  }
  return job;
}

TEST(BalancedStages, AreCutByWhatLayersOfDividedTokensTake) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  const std::vector<JobShape> jobs = {job_below(11, 2048)};
  const StageMachine machine{device_preset("A40"), link_preset("nvlink-600"), "bfloat16"};
  StagePrices prices(model, jobs, machine);
  const int64_t tokens = 4096, no_limit = std::numeric_limits<int64_t>::max();
  const size_t everything = prices.jobs_number({0});
  const MicrobatchCounts counts = even_microbatch(1, tokens, {1});
  const auto slowest = [&](int64_t cut, bool is_sequence_parallel) {
    const auto of = [&](const StageShape& stage) { return prices.at(stage, everything).seconds(counts).total(); };
    return std::max(of({0, cut, true, false, 4, is_sequence_parallel}), of({cut, model.layer_count, false, true, 4, is_sequence_parallel}));
  };
  std::vector<int64_t> best;
  for (const bool is_sequence_parallel : {false, true}) {
    const std::vector<StageShape> cut = balanced_stages(model, jobs, 2, 4, tokens, prices, no_limit, {}, is_sequence_parallel);
    ASSERT_EQ(cut.size(), 2u);
    for (const StageShape& stage : cut) EXPECT_EQ(stage.is_sequence_parallel, is_sequence_parallel);
    double least = slowest(1, is_sequence_parallel);
    for (int64_t other = 2; other < model.layer_count; ++other) least = std::min(least, slowest(other, is_sequence_parallel));
    EXPECT_NEAR(slowest(cut.front().last_layer, is_sequence_parallel) / least, 1, 1e-9);
    best.push_back(cut.front().last_layer);
  }
  EXPECT_LT(best[0], best[1]) << "bottlenecks take less time where tokens are divided";
}

/// mLoRA's 22 layers on four stages; the last one has the head, too.
TEST(BalancedStages, OfTinyLlamaAreUnevenByLessThanALayer) {
  const ModelConfig model = model_preset("tinyllama-1.1b");
  JobSpec spec;
  spec.adapter.r = 16;
  const std::vector<JobShape> jobs = {
      {.name = "only", .batch_size = 8, .lengths = histogram_of(std::vector<int64_t>{512}), .adapters = adapter_shapes(spec, 0, model)}};
  StagePrices prices(model, jobs, {device_preset("A6000"), link_preset("pcie4"), "float32"});
  const MicrobatchCounts counts = even_microbatch(1, 4096, {1});
  const auto seconds = [&](const StageShape& stage) { return prices.at(stage, prices.jobs_number({0})).seconds(counts).total(); };
  std::vector<double> of_stage;
  for (const StageShape& stage : balanced_stages(model, jobs, 4, 1, 4096, prices, std::numeric_limits<int64_t>::max())) of_stage.push_back(seconds(stage));
  ASSERT_EQ(of_stage.size(), 4u);
  const auto [least, most] = std::ranges::minmax(of_stage);
  EXPECT_LT(most - least, seconds({10, 11, false, false}));
  EXPECT_LT(most / least, 6.0 / 5);
}

}  // namespace
}  // namespace cotune
