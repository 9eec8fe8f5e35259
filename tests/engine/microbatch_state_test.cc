// What a microbatch's rows are made of: pads among them (layouts padded and chunked).

#include "engine/microbatch_state.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>

#include "schedule/step_plan.h"

namespace cotune::testing {
namespace {

/// A row whose tokens count up from `first`, all of them learned.
BatchRow counted_row(int32_t first, int64_t length) {
  BatchRow row;
  for (int64_t i = 0; i < length; ++i) row.tokens.push_back(first + static_cast<int32_t>(i));
  row.learned.assign(row.tokens.size(), 1);
  return row;
}

template <typename T>
std::vector<T> values_of(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<T>(), tensor.const_data_ptr<T>() + tensor.numel()};
}

/// Two jobs in one microbatch: rows of 2 and 4 tokens, and one of 3.
struct TwoJobs {
  Batch first{.step = 0, .rows = {counted_row(100, 2), counted_row(200, 4)}}, second{.step = 0, .rows = {counted_row(300, 3)}};
  std::vector<JobRound> rounds;
  ChainCaches chains;

  explicit TwoJobs(RoundPurpose purpose = RoundPurpose::train) {
    for (const Batch* batch : {&first, &second}) {
      JobRound round;
      round.job = static_cast<int32_t>(rounds.size());
      round.batch = batch;
      round.purpose = purpose;
      round.labelled_tokens = batch->labelled_count();
      rounds.push_back(std::move(round));
    }
  }

  MicrobatchState state(Layout layout) {
    const std::vector<BatchShape> batches{first.shape(0, 0), second.shape(1, 0)};
    const StepPlan plan = plan_step(batches, {.sharing = Sharing::batch_all, .layout = layout, .chunk_size = 4});
    EXPECT_EQ(plan.microbatches.size(), 1U);
    return make_microbatch_state(plan.microbatches[0], layout, {{0, &rounds[0]}, {1, &rounds[1]}}, chains, {0, 1}, {1, 1, 16}, at::kFloat, at::kCPU);
  }
};

TEST(MicrobatchState, OfPaddedRowsHasEveryPadInTheHeadToo) {
  TwoJobs jobs;
  const MicrobatchState state = jobs.state(Layout::padded);
  EXPECT_EQ(values_of<int64_t>(state.tokens), (std::vector<int64_t>{100, 101, 0, 0, 200, 201, 202, 203, 300, 301, 302, 0}));
  EXPECT_EQ(values_of<int64_t>(state.scored_rows), (std::vector<int64_t>{0, 2, 3, 4, 5, 6, 8, 9, 11}));
  EXPECT_EQ(values_of<int32_t>(state.labels), (std::vector<int32_t>{101, 0, 0, 201, 202, 203, 301, 302, 0}));
}

TEST(MicrobatchState, OfPaddedRowsLetsPadsCountForNothing) {
  TwoJobs jobs;
  const MicrobatchState state = jobs.state(Layout::padded);
  const float first = 1.0F / 4, second = 1.0F / 2;
  EXPECT_EQ(values_of<float>(state.row_scale), (std::vector<float>{first, 0, 0, first, first, first, second, second, 0}));
  std::map<JobRound*, std::vector<int64_t>> summed;
  for (const MicrobatchState::LossSpan& span : state.loss_spans) {
    for (int64_t i = span.begin; i < span.end; ++i) summed[state.jobs[span.job]].push_back(i);
  }
  EXPECT_EQ(summed[&jobs.rounds[0]], (std::vector<int64_t>{3, 4, 5, 0}));
  EXPECT_EQ(summed[&jobs.rounds[1]], (std::vector<int64_t>{6, 7}));
  const std::vector<bool> is_pad{false, true, true, false, false, false, false, false, true};
  ASSERT_EQ(state.label_rows.size(), is_pad.size());
  for (size_t i = 0; i < is_pad.size(); ++i) EXPECT_EQ(state.label_rows[i].first == nullptr, is_pad[i]) << i;
}

TEST(MicrobatchState, OfChunksHasThePadsOfTheLastOneInTheHeadToo) {
  TwoJobs jobs;
  const MicrobatchState state = jobs.state(Layout::chunked);
  int64_t pads = 0;
  for (const auto& [round, row] : state.label_rows) pads += round == nullptr;
  EXPECT_EQ(pads, state.token_count() - 9);
  EXPECT_GT(pads, 0);
  EXPECT_EQ(state.scored_rows.size(0), 6 + pads);
}

TEST(MicrobatchState, OfRaggedRowsHasTheRowsAloneThatPredictALearnedToken) {
  TwoJobs jobs;
  const MicrobatchState state = jobs.state(Layout::ragged);
  EXPECT_EQ(values_of<int64_t>(state.scored_rows), (std::vector<int64_t>{0, 2, 3, 4, 6, 7}));
  EXPECT_EQ(state.loss_spans.size(), 2U) << "one an atom";
}

}  // namespace
}  // namespace cotune::testing
