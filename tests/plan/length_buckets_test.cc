#include "plan/shapes/length_buckets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/random.h"

namespace cotune {
namespace {

std::vector<int64_t> random_lengths(uint64_t seed, int64_t count, uint64_t longest) {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) lengths.push_back(1 + static_cast<int64_t>(uniform_below(seed, static_cast<uint64_t>(i), longest)));
  return lengths;
}

int64_t exhaustive_padding(const std::vector<int64_t>& lengths, const BucketPolicy& policy, int intervals) {
  int64_t best = std::numeric_limits<int64_t>::max();
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  for (uint32_t mask = 1; mask < (1u << intervals); ++mask) {
    std::vector<int64_t> boundaries;
    for (int k = 0; k < intervals; ++k) {
      if (mask >> k & 1) boundaries.push_back((k + 1) * policy.interval);
    }
    if (boundaries.back() < longest || static_cast<int64_t>(boundaries.size()) > policy.buckets) continue;
    best = std::min(best, sort_into_buckets(lengths, boundaries).padding);
  }
  return best;
}

TEST(BucketLengths, PadAsLittleAsAnyChoiceOfBoundaries) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    BucketPolicy policy;
    policy.buckets = 1 + static_cast<int64_t>(seed % 5);
    const std::vector<int64_t> lengths = random_lengths(seed, 1 + static_cast<int64_t>(seed % 30), 256 * 10);
    const LengthBuckets buckets = bucket_lengths(lengths, policy);
    EXPECT_EQ(buckets.padding, exhaustive_padding(lengths, policy, 10)) << seed;
    EXPECT_LE(static_cast<int64_t>(buckets.tokens.size()), policy.buckets);
    int64_t rows = 0;
    for (const int64_t each : buckets.sequences) rows += each;
    EXPECT_EQ(rows, static_cast<int64_t>(lengths.size()));
  }
}

TEST(BucketLengths, PadLessWithMoreBuckets) {
  const std::vector<int64_t> lengths = random_lengths(5, 1696, 256 * 64);
  int64_t before = std::numeric_limits<int64_t>::max();
  for (int64_t count = 1; count <= 70; ++count) {
    BucketPolicy policy;
    policy.buckets = count;
    const int64_t padding = bucket_lengths(lengths, policy).padding;
    EXPECT_LE(padding, before);
    before = padding;
  }
}

TEST(BucketLengths, HoldPinnedLengthsApart) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    BucketPolicy policy;
    policy.buckets = 4;
    policy.pinned = {700, 1500, 1 << 20};
    const std::vector<int64_t> lengths = random_lengths(seed, 40, 256 * 10);
    const LengthBuckets buckets = bucket_lengths(lengths, policy);
    for (const int64_t pin : {700, 1500}) {
      // A row that fits below the pin after rounding is never padded beyond it.
      for (const int64_t length : lengths) {
        if ((length + 255) / 256 * 256 > pin) continue;
        EXPECT_LE(*std::lower_bound(buckets.tokens.begin(), buckets.tokens.end(), length), pin);
      }
    }
    policy.pinned.clear();
    EXPECT_LE(bucket_lengths(lengths, policy).padding, buckets.padding);
  }
}

TEST(BucketLengths, OfEdgeCases) {
  EXPECT_EQ(bucket_lengths({}), LengthBuckets{});
  EXPECT_EQ(bucket_lengths(std::vector<int64_t>{256}).tokens, (std::vector<int64_t>{256}));
  EXPECT_EQ(bucket_lengths(std::vector<int64_t>{257, 257}).tokens, (std::vector<int64_t>{512}));
}

TEST(AverageStep, HasAsManySequencesAsAStepAndTheLongestOnce) {
  EXPECT_EQ(average_step(std::vector<int64_t>{250, 30, 30, 30, 30, 30}, 100), (std::vector<int64_t>{2, 1, 0, 0, 0, 1}));
  EXPECT_EQ(average_step(std::vector<int64_t>{0, 1, 0}, 100), (std::vector<int64_t>{0, 1, 0}));
  EXPECT_EQ(average_step(std::vector<int64_t>{7, 5}, 1), (std::vector<int64_t>{7, 5}));
  for (uint64_t seed = 0; seed < 200; ++seed) {
    std::vector<int64_t> counts;
    int64_t sum = 0;
    for (uint64_t j = 0; j < 12; ++j) sum += counts.emplace_back(static_cast<int64_t>(uniform_below(seed, j, 200)));
    const std::vector<int64_t> average = average_step(counts, 100);
    int64_t total = 0, exact = 0;
    for (size_t j = counts.size(); j-- > 0;) {
      EXPECT_GE(average[j], 0);
      total += average[j];
      exact += counts[j];
      EXPECT_LE(std::abs(100 * total - exact), 100) << "the tail as well";
    }
    EXPECT_LE(std::abs(100 * total - sum), 50);
  }
}

}  // namespace
}  // namespace cotune
