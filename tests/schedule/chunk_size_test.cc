#include "schedule/chunk_size.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "schedule/random_batches.h"
#include "schedule/step_plan.h"
#include "schedule/token_counts.h"

namespace cotune {
namespace {

int64_t size_for(std::vector<int64_t> lengths, int64_t most = 1024) { return chunk_size_for(lengths, most); }

TEST(ChunkSizeFor, IsTheGreatestPowerOfTwoThatDividesAllPaddedLengths) {
  EXPECT_EQ(size_for({64, 128, 256}), 64);
  EXPECT_EQ(size_for({128, 384, 256}), 128);
  EXPECT_EQ(size_for({512}), 512);
  EXPECT_EQ(size_for({4096, 2048}, 4096), 2048);
}

TEST(ChunkSizeFor, IsLiftedToTheLeastAndFitsTheTokenBudget) {
  EXPECT_EQ(size_for({96, 160}), 64) << "32 divides them";
  EXPECT_EQ(size_for({250, 61}), 64);
  EXPECT_EQ(size_for({1}), 64);
  EXPECT_EQ(size_for({4096, 8192}), 1024);
  EXPECT_EQ(size_for({4096, 8192}, 700), 512) << "chunks of a power of two";
  EXPECT_EQ(size_for({4096}, 64), 64);
  EXPECT_THROW(size_for({}), InternalError);
  EXPECT_THROW(size_for({64, 0}), InternalError);
  EXPECT_THROW(size_for({64}, 63), InternalError);
}

TEST(ChunkSizeFor, DividesWhatNoLargerPowerOfTwoDoes) {
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    Dice dice(seed);
    const int64_t common = int64_t{1} << dice.between(0, 11);
    std::vector<int64_t> lengths;
    for (int64_t job = dice.between(1, 6); job > 0; --job) lengths.push_back(common * dice.between(1, 9));
    const int64_t most = dice.between(64, 4096), size = chunk_size_for(lengths, most);
    const auto divides_all = [&](int64_t chunk) {
      return std::all_of(lengths.begin(), lengths.end(), [chunk](int64_t length) { return length % chunk == 0; });
    };
    EXPECT_EQ(size & (size - 1), 0) << seed;
    EXPECT_LE(size, most) << seed;
    EXPECT_TRUE(size == least_chunk_size || divides_all(size)) << seed;
    EXPECT_TRUE(2 * size > most || !divides_all(2 * size)) << seed;
  }
}

StepPlan chunked_step(const BatchShape& batch, int64_t chunk_size, int64_t token_budget) {
  return plan_step(std::span(&batch, 1), {.layout = Layout::chunked, .token_budget = token_budget, .chunk_size = chunk_size});
}

/// Keys and values that the microbatches of a step read of rows that began in others.
int64_t tokens_read_again(const StepPlan& plan) {
  int64_t tokens = 0;
  for (const Microbatch& microbatch : plan.microbatches) {
    for (const RowPart& part : row_parts(microbatch)) tokens += part.position;
  }
  return tokens;
}

/// The longest row is whole chunks of every size, so all sizes cut the same packed rows. What is executed together is up to 256 tokens
/// (atom_tokens) of chunks and more: smaller chunks pad less, and read nothing again for it.
TEST(ChunkSize, OfFixedPackedRowsPadsMoreTheLargerItIsAndReadsEquallyMuchAgain) {
  int64_t padded_more = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Dice dice(seed);
    BatchShape batch{.row_lengths = {512 * dice.between(1, 3)}};
    for (int64_t row = dice.between(0, 12); row > 0; --row) batch.row_lengths.push_back(dice.between(1, batch.row_lengths[0]));
    const int64_t read_by_atoms = tokens_read_again(chunked_step(batch, 16, atom_tokens));
    EXPECT_GE(read_by_atoms, atom_tokens) << seed << ": the longest row is two atoms at least";
    int64_t padded_before = 0;
    for (const int64_t chunk : {16, 32, 64, 128, 256, 512}) {
      const StepPlan plan = chunked_step(batch, chunk, 2048);
      const int64_t padded = count_tokens(plan).front().pad_to_chunk;
      EXPECT_GE(padded, padded_before) << seed << " " << chunk;
      padded_more += padded > padded_before ? 1 : 0;
      padded_before = padded;
      EXPECT_EQ(tokens_read_again(plan), 0) << seed << " " << chunk << ": a packed row of at most 1,536 tokens is in one microbatch";
      if (chunk > atom_tokens) continue;
      EXPECT_EQ(tokens_read_again(chunked_step(batch, chunk, atom_tokens)), read_by_atoms) << seed << " " << chunk;
    }
  }
  EXPECT_GT(padded_more, 400);
}

}  // namespace
}  // namespace cotune
