// MuxTune's workloads WL-A and WL-B (Table 2), with stand-in lengths for SST2, OpenBookQA and RTE: what each
// layout makes of them, in tokens.

#include <gtest/gtest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "base/file.h"
#include "schedule/random_batches.h"
#include "schedule/step_plan.h"
#include "schedule/token_counts.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

constexpr int64_t sst2 = 64;
constexpr int64_t qa = 128;
constexpr int64_t rte = 256;
const std::vector<int64_t> batch_sizes{4, 2, 4, 4, 8, 2, 4, 4};
const std::vector<int64_t> lengths_a{sst2, qa, qa, sst2, sst2, sst2, qa, qa};
const std::vector<int64_t> lengths_b{rte, sst2, rte, sst2, sst2, rte, rte, rte};

/// The first `tasks` tasks, every row padded or cut to its data set's length.
std::vector<BatchShape> workload(const std::vector<int64_t>& lengths, size_t tasks = 8) {
  std::vector<BatchShape> batches;
  for (size_t task = 0; task < tasks; ++task) {
    batches.push_back(
        {.job = static_cast<int32_t>(task),
         .row_lengths = std::vector<int64_t>(static_cast<size_t>(batch_sizes[task]), lengths[task])});
  }
  return batches;
}

TokenCounts tokens(const std::vector<BatchShape>& batches, Sharing sharing, Layout layout,
                   int64_t chunk_size = 64) {
  const PackingPolicy policy{
      .sharing = sharing, .layout = layout, .token_budget = 1024, .chunk_size = chunk_size};
  TokenCounts all;
  for (const TokenCounts& counts : count_tokens(plan_step(batches, policy))) {
    all.real += counts.real;
    all.pad_to_row += counts.pad_to_row;
    all.pad_to_mix += counts.pad_to_mix;
    all.pad_to_chunk += counts.pad_to_chunk;
  }
  return all;
}

TEST(MuxTuneWorkloads, PadAsManyTokensAsTheReferenceCounts) {
  const TokenCounts a = tokens(workload(lengths_a), Sharing::batch_all, Layout::padded);
  EXPECT_EQ(a.real, 2944);
  EXPECT_EQ(a.processed(), 4096);  // 1.39 times
  const TokenCounts b = tokens(workload(lengths_b), Sharing::batch_all, Layout::padded);
  EXPECT_EQ(b.real, 5504);
  EXPECT_EQ(b.processed(), 8192);  // 1.49 times
}

TEST(MuxTuneWorkloads, RaggedAndChunkedProcessNoMoreThanPadded) {
  for (const std::vector<int64_t>& lengths : {lengths_a, lengths_b}) {
    for (size_t tasks = 1; tasks <= 8; ++tasks) {
      const std::vector<BatchShape> batches = workload(lengths, tasks);
      const int64_t padded = tokens(batches, Sharing::batch_all, Layout::padded).processed();
      const TokenCounts ragged = tokens(batches, Sharing::hybrid, Layout::ragged);
      const TokenCounts chunked = tokens(batches, Sharing::hybrid, Layout::chunked);
      EXPECT_EQ(ragged.processed(), ragged.real);
      EXPECT_EQ(chunked.processed(), ragged.real) << "chunks of 64 divide 64, 128 and 256";
      const bool is_mixed = std::any_of(lengths.begin(), lengths.begin() + static_cast<std::ptrdiff_t>(tasks),
                                        [&](int64_t length) { return length != lengths[0]; });
      EXPECT_EQ(padded > ragged.processed(), is_mixed) << tasks;
    }
  }
}

TEST(MuxTuneWorkloads, LargerChunksPadMore) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    Dice dice(seed);
    // One row a job: packing has no choice, the chunks alone pad.
    std::vector<BatchShape> batches;
    for (int32_t job = 0; job < 6; ++job)
      batches.push_back({.job = job, .row_lengths = {dice.between(1, 500)}});
    int64_t before = 0;
    for (const int64_t chunk : {16, 32, 64, 128, 256, 512}) {
      const int64_t padded = tokens(batches, Sharing::hybrid, Layout::chunked, chunk).pad_to_chunk;
      EXPECT_GE(padded, before) << seed << " " << chunk;
      before = padded;
    }
  }
}

TEST(MuxTuneWorkloads, StandInTheDocsAsCounted) {
  std::string table = "| workload | layout | tokens processed | per token needed |\n|---|---|---|---|\n";
  const auto add = [&](const char* workload_name, const char* layout_name, const TokenCounts& counts) {
    table += fmt::format(
        "| {} | {} | {} | {:.2f} |\n", workload_name, layout_name, counts.processed(),
        static_cast<double>(counts.processed()) / static_cast<double>(counts.real + counts.pad_to_row));
  };
  for (const auto& [name, lengths] : {std::pair{"WL-A", lengths_a}, std::pair{"WL-B", lengths_b}}) {
    const std::vector<BatchShape> batches = workload(lengths);
    add(name, "batch-all, padded (SL-PEFT)", tokens(batches, Sharing::batch_all, Layout::padded));
    add(name, "hybrid, padded", tokens(batches, Sharing::hybrid, Layout::padded));
    add(name, "hybrid, chunks of 256", tokens(batches, Sharing::hybrid, Layout::chunked, 256));
    add(name, "hybrid, chunks of 64 (MuxTune)", tokens(batches, Sharing::hybrid, Layout::chunked));
    add(name, "hybrid, ragged", tokens(batches, Sharing::hybrid, Layout::ragged));
  }
  const std::filesystem::path path = source_folder() / "docs/schedules.md";
  const std::string begin = "<!-- layouts:begin -->\n", end = "<!-- layouts:end -->";
  std::string page = read_file(path);
  const size_t from = page.find(begin) + begin.size();
  const size_t to = page.find(end);
  ASSERT_LT(from, to + 1);
  if (std::getenv("COTUNE_UPDATE") != nullptr) {
    page.replace(from, to - from, table);
    write_file_atomically(path, page);
    return;
  }
  EXPECT_EQ(page.substr(from, to - from), table) << "run COTUNE_UPDATE=1 build/test_schedule";
}

}  // namespace
}  // namespace cotune
