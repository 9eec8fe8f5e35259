#include "data/batch_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

namespace cotune {
namespace {

using testing::ElementsAre;

TEST(BatchOrder, EveryEpochTakesEachExampleOnce) {
  const BatchOrder order{10, 4, 7, Shuffle::epoch};
  EXPECT_EQ(steps_per_epoch(order), 3);
  std::vector<std::vector<int64_t>> epochs;
  BatchSequence sequence(order);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> seen;
    for (int64_t step = 3 * epoch; step < 3 * epoch + 3; ++step) {
      const std::vector<int64_t> batch = sequence.batch(step);
      EXPECT_EQ(batch, batch_examples(order, step));
      EXPECT_EQ(batch.size(), step % 3 == 2 ? 2u : 4u);
      seen.insert(seen.end(), batch.begin(), batch.end());
    }
    epochs.push_back(seen);
    std::sort(seen.begin(), seen.end());
    EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epoch_order({10, 4, 8, Shuffle::epoch}, 0), epochs[0]);
  EXPECT_EQ(epoch_order({10, 5, 7, Shuffle::epoch}, 0), epochs[0]);
}

BatchOrder weighted(std::vector<ExampleShare> shares, Shuffle shuffle = Shuffle::epoch, uint64_t seed = 7) {
  BatchOrder order{0, 4, seed, shuffle, shares};
  for (const ExampleShare& share : shares) order.example_count += share.example_count;
  return order;
}

TEST(BatchOrder, WeightsSayHowManyExamplesOfEachFileAnEpochTakes) {
  EXPECT_THAT(share_sizes(weighted({{90, 1}, {10, 1}})), ElementsAre(50, 50));
  EXPECT_THAT(share_sizes(weighted({{90, 3}, {11, 1}})), ElementsAre(76, 25));
  EXPECT_THAT(share_sizes(weighted({{5, 1}, {5, 1}, {1, 1}})), ElementsAre(4, 4, 3));
  EXPECT_THAT(share_sizes(weighted({{5, 1e9}, {5, 1e-9}, {0, 0}})), ElementsAre(9, 1, 0));
  EXPECT_THAT(share_sizes(weighted({{2, 1e-9}, {1, 1e9}})), ElementsAre(1, 2));
}

TEST(BatchOrder, WeightedFilesGoThroughAllTheirExamplesBeforeAnyComesAgain) {
  const std::vector<ExampleShare> shares = {{7, 3}, {5, 1}, {23, 9}, {0, 0}, {1, 2}};
  for (const Shuffle shuffle : {Shuffle::epoch, Shuffle::none}) {
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const BatchOrder order = weighted(shares, shuffle, seed);
      const std::vector<int64_t> sizes = share_sizes(order);
      std::vector<std::vector<int64_t>> of_file(shares.size());
      for (int64_t epoch = 0; epoch < 35; ++epoch) {
        std::vector<int64_t> counts(shares.size(), 0);
        for (const int64_t example : epoch_order(order, epoch)) {
          size_t file = 0;
          for (int64_t end = shares[0].example_count; example >= end; end += shares[file].example_count) ++file;
          of_file[file].push_back(example);
          ++counts[file];
        }
        ASSERT_EQ(counts, sizes) << epoch;
      }
      for (size_t file = 0; file < shares.size(); ++file) {
        for (size_t begin = 0; begin < of_file[file].size(); begin += static_cast<size_t>(shares[file].example_count)) {
          const size_t end = std::min(begin + static_cast<size_t>(shares[file].example_count), of_file[file].size());
          const std::set<int64_t> pass(of_file[file].begin() + static_cast<int64_t>(begin), of_file[file].begin() + static_cast<int64_t>(end));
          ASSERT_EQ(pass.size(), end - begin) << "seed " << seed << ", file " << file << ", from " << begin;
        }
      }
    }
  }
}

TEST(BatchOrder, WeightedFilesAreShuffledAnewInEveryEpochAndBySeed) {
  const BatchOrder order = weighted({{7, 3}, {5, 1}});
  const auto files = [](const BatchOrder& of, int64_t epoch) {
    std::vector<bool> second;
    for (const int64_t example : epoch_order(of, epoch)) second.push_back(example >= 7);
    return second;
  };
  EXPECT_NE(epoch_order(order, 0), epoch_order(order, 1));
  EXPECT_NE(files(order, 0), files(order, 1));
  EXPECT_NE(epoch_order(order, 0), epoch_order(weighted({{7, 3}, {5, 1}}, Shuffle::epoch, 8), 0));
  BatchSequence sequence(order);
  for (int64_t step = 0; step < 12; ++step) EXPECT_EQ(sequence.batch(step), batch_examples(order, step));
}

TEST(BatchOrder, WithoutShufflingWeightedFilesAlternateEvenly) {
  const BatchOrder order = weighted({{4, 2}, {5, 1}}, Shuffle::none);
  EXPECT_THAT(epoch_order(order, 0), ElementsAre(0, 4, 1, 2, 5, 3, 0, 6, 1));
  EXPECT_THAT(epoch_order(order, 1), ElementsAre(2, 7, 3, 0, 8, 1, 2, 4, 3));
}

TEST(BatchOrder, WithoutShufflingFollowsTheFile) {
  const BatchOrder order{5, 2, 7, Shuffle::none};
  EXPECT_THAT(batch_examples(order, 2), ElementsAre(4));
  EXPECT_THAT(batch_examples(order, 3), ElementsAre(0, 1));
}

TEST(BatchOrder, CountsStepsOfFractionalEpochs) {
  const BatchOrder order{10, 4, 0, Shuffle::epoch};
  EXPECT_EQ(total_steps(order, 17, 0), 17);
  EXPECT_EQ(total_steps(order, 0, 2), 6);
  EXPECT_EQ(total_steps(order, 0, 0.5), 2);
  EXPECT_EQ(total_steps(order, 0, 1.1), 4);
}

}  // namespace
}  // namespace cotune
