#include "plan/cost/price_rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <ctime>

#include "plan/random_planning.h"
#include "plan/shapes/published_lengths.h"
#include "plan/shapes/typical_step.h"

namespace cotune {
namespace {

/// One job of so many rows a batch, on a pipeline of four stages.
struct LargeBatch {
  ReplicaModel replica{.model = model_preset("tinyllama-1.1b"), .jobs = {}, .stages = {}, .machine = {.device = device_preset("A40")}, .links = {}};
  std::vector<StepRow> rows;

  explicit LargeBatch(int64_t row_count) {
    JobShape job{.name = "job", .batch_size = row_count, .lengths = published_lengths("xsum-lognormal")};
    job.lengths = truncated(job.lengths, replica.model.context_length);
    job.adapters = adapter_shapes(JobSpec(), 0, replica.model);
    replica.jobs = {job};
    replica.stages = even_stages(replica.model, 4, 1);
    rows = typical_step(replica.jobs);
  }
  PricedRows priced(Sharing sharing) const {
    return price_rows(replica, rows, {.sharing = sharing, .token_budget = 4096, .hybrid_tasks = {{0}}});
  }
  double seconds(Sharing sharing) const {
    const std::clock_t start = std::clock();
    EXPECT_GT(priced(sharing).microbatches, 4);
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  }
};

/// Slices hold every n-th row: the fewest that keep within the budget.
TEST(PriceRows, CutABatchIntoTheFewestSlicesWithinTheBudget) {
  const LargeBatch batch(256);
  const auto keeps_within = [&](size_t count) {
    std::vector<int64_t> tokens(count, 0);
    for (size_t i = 0; i < batch.rows.size(); ++i) tokens[i % count] += batch.rows[i].tokens;
    return *std::ranges::max_element(tokens) <= 4096;
  };
  int64_t fewest = 1;
  while (!keeps_within(static_cast<size_t>(fewest))) ++fewest;
  EXPECT_EQ(batch.priced(Sharing::batch_all).microbatches, fewest);
}

/// Numbers of slices that are too few are seen without packing rows: slices cost about what microbatches of the same rows do.
TEST(PriceRows, TakeNoLongerToFindSlicesOfALargeBatchThanToPackIt) {
  const LargeBatch batch(16384);
  double packed_s = batch.seconds(Sharing::hybrid), sliced_s = batch.seconds(Sharing::batch_all);
  for (int again = 0; again < 2; ++again) {
    packed_s = std::min(packed_s, batch.seconds(Sharing::hybrid));
    sliced_s = std::min(sliced_s, batch.seconds(Sharing::batch_all));
  }
  EXPECT_LT(sliced_s, 4 * packed_s);
  RecordProperty("ratio", std::to_string(sliced_s / packed_s));
}

/// A chain keeps the keys and values of its row and their gradients in f32 beside what its chunks keep.
TEST(PriceRows, CountTheKeysAndValuesOfChains) {
  LargeBatch batch(1);
  batch.rows = {{0, 1024}};
  const auto kept = [&](int64_t budget, size_t microbatches) {
    const PricedRows priced = price_rows(batch.replica, batch.rows, {.sharing = Sharing::hybrid, .token_budget = budget, .hybrid_tasks = {{0}}});
    EXPECT_EQ(priced.works.front().microbatches.size(), microbatches);
    std::vector<int64_t> bytes(batch.replica.stages.size(), 0);
    for (const PipelineMicrobatch& each : priced.works.front().microbatches) {
      for (size_t s = 0; s < bytes.size(); ++s) bytes[s] += each.cost[s].kept_bytes;
    }
    return bytes;
  };
  const std::vector<int64_t> whole = kept(1024, 1), chain = kept(256, 4);
  for (size_t s = 0; s < whole.size(); ++s) {
    const StageShape& stage = batch.replica.stages[s];
    // TinyLlama: four heads of 64 for keys, as many for values.
    EXPECT_EQ(chain[s] - whole[s], 1024 * 2 * 256 * (2 + 4) * (stage.last_layer - stage.first_layer)) << s;
  }
}

}  // namespace
}  // namespace cotune
