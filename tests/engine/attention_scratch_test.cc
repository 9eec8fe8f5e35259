// What the memory model is told of the scratch of attention is what the kernels take, which is counted and limited.

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "engine/memory_facts.h"
#include "engine/random_job.h"
#include "kernels/attention.h"
#include "ops/attention.h"
#include "ops/backend.h"
#include "ops/low_rank_forms.h"
#include "ops/memory.h"
#include "schedule/memory/memory_shapes.h"

namespace cotune::testing {
namespace {

class AttentionScratchIn : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  void SetUp() override {
    if (!test_device().is_cpu()) GTEST_SKIP() << "counts the host's memory";
    if (kernel_isa(GetParam(), at::kCPU) == kernels::Isa::none) GTEST_SKIP() << "this processor takes ATen's operators";
  }
};

TEST_P(AttentionScratchIn, IsWhatTheKernelsAskFor) {
  const MemoryFacts facts = memory_facts(GetParam(), at::kCPU);
  EXPECT_EQ(facts.attention_threads, at::get_num_threads());
  for (const auto& [heads, kv_heads] : {std::pair<int64_t, int64_t>{1, 1}, {9, 3}, {8, 1}}) {
    ModelConfig config = kernel_friendly_config();
    config.head_dim = 80;
    config.head_count = heads;
    config.kv_head_count = kv_heads;
    const kernels::AttentionShape shape{heads, kv_heads, 80, 1};
    for (const int64_t tokens : {1, 65, 32768}) {
      const int64_t forward = kernels::attention_forward_scratch_bytes(kernel_dtype(GetParam()), shape, tokens);
      EXPECT_EQ(attention_scratch_bytes(config, tokens, Direction::forward, facts), forward);
      EXPECT_EQ(attention_scratch_bytes(config, tokens, Direction::evaluate, facts), forward);
      EXPECT_EQ(attention_scratch_bytes(config, tokens, Direction::backward, facts),
                kernels::attention_backward_scratch_bytes(kernel_dtype(GetParam()), shape, tokens));
    }
    config.head_dim = 256;
    EXPECT_EQ(attention_scratch_bytes(config, 1000, Direction::backward, facts), 0) << "ATen's attention";
  }
}

/// A whole row, of a model with heads of this shape.
struct AttendedRow {
  AttendedRow(at::ScalarType dtype, int64_t tokens) : segments{{0, tokens, 0, nullptr}}, facts(memory_facts(dtype, at::kCPU)) {
    const auto options = at::TensorOptions().dtype(dtype);
    qkv = at::zeros({tokens, shape.qkv_columns()}, options);
    d = at::zeros({tokens, shape.query_columns()}, options);
    forward = {at::zeros_like(d), at::zeros({tokens, shape.heads})};
    ModelConfig config = kernel_friendly_config();
    config.head_count = shape.heads;
    config.kv_head_count = shape.kv_heads;
    config.head_dim = shape.head_dim;
    scratch_bytes = facts.attention_threads * attention_scratch_bytes(config, tokens, Direction::backward, facts);
  }

  static constexpr AttentionShape shape{4, 2, 64};
  std::vector<AttentionSegment> segments;
  MemoryFacts facts;
  at::Tensor qkv, d;
  AttentionResult forward;
  int64_t scratch_bytes = 0;
};

TEST_P(AttentionScratchIn, CountsAsWorkspaceWhileACallRuns) {
  const AttendedRow row(GetParam(), 1000);
  const MemoryUsage before = memory_usage();
  reset_memory_peaks();
  attention_backward(row.d, row.qkv, row.forward, row.segments, row.shape);
  EXPECT_EQ(memory_usage().peak_bytes[static_cast<size_t>(MemoryKind::workspace)] - before[MemoryKind::workspace], row.scratch_bytes);
  EXPECT_EQ(memory_usage()[MemoryKind::workspace], before[MemoryKind::workspace]);
}

TEST_P(AttentionScratchIn, IsRefusedBeyondTheLimit) {
  const AttendedRow row(GetParam(), 32768);
  release_unused_memory();
  set_memory_limit(memory_usage().held_bytes + static_cast<int64_t>(row.qkv.nbytes()) + row.scratch_bytes / 2);
  EXPECT_THROW(attention_backward(row.d, row.qkv, row.forward, row.segments, row.shape), MemoryLimitExceeded);
  set_memory_limit(0);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, AttentionScratchIn, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace cotune::testing
