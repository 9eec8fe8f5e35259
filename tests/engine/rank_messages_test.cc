// Messages between stages: their buffers are used again.
#include "engine/rank_messages.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/communicator.h"
#include "ops/memory.h"

namespace cotune {
namespace {

constexpr int64_t hidden_size = 4096, most_tokens = 1000;
constexpr auto granule_bytes = static_cast<int64_t>(BlockStoreOptions{}.granule_bytes);

int64_t live_bytes() { return memory_usage().live_bytes(); }

/// Two ranks of a pipeline on one thread, so that the order of what they do is always the same.
class MessagesOfTwoRanks : public ::testing::Test {
 protected:
  void SetUp() override { install_counting_allocator(); }

  static Action message(ActionKind kind, int32_t microbatch, int32_t peer) {
    return {.kind = kind, .microbatch = microbatch, .stage = kind == ActionKind::send_error || kind == ActionKind::receive_error ? 0 : 1, .peer = peer};
  }

  void go_up(int32_t microbatch, int64_t tokens) {
    const at::Tensor rows = rows_.narrow(0, 0, tokens);
    upper.post(message(ActionKind::receive_activation, microbatch, 0), tokens, 0);
    lower.send(message(ActionKind::send_activation, microbatch, 1), static_cast<size_t>(microbatch), rows, records_.narrow(0, 0, 0));
    EXPECT_TRUE(at::equal(upper.wait(ActionKind::receive_activation, 1, microbatch).rows, rows));
    upper.release(ActionKind::receive_activation, 1, microbatch);
  }
  void go_down(int32_t microbatch, int64_t tokens) {
    lower.post(message(ActionKind::receive_error, microbatch, 1), tokens, 2);
    upper.send(message(ActionKind::send_error, microbatch, 0), static_cast<size_t>(microbatch), rows_.narrow(0, 0, tokens), records_);
    EXPECT_TRUE(at::equal(lower.wait(ActionKind::receive_error, 0, microbatch).records, records_));
    lower.release(ActionKind::receive_error, 0, microbatch);
  }
  /// Another thread frees transfers that are done.
  static void wait_until_live(int64_t bytes) {
    while (live_bytes() > bytes) std::this_thread::yield();
  }

  std::vector<std::unique_ptr<Communicator>> ranks = thread_communicators(2);
  RankMessages lower{*ranks[0], hidden_size, at::kFloat, at::kCPU}, upper{*ranks[1], hidden_size, at::kFloat, at::kCPU};
  at::Tensor rows_ = at::randn({most_tokens, hidden_size}), records_ = at::randn({2, 2}, at::kDouble);
};

TEST_F(MessagesOfTwoRanks, TakeNoMoreMemoryFromTheSystemOnceTheirFirstBuffersAreThere) {
  const int64_t before = live_bytes(), message_bytes = most_tokens * hidden_size * 4;
  const auto up_and_down = [&](int32_t microbatch, int64_t tokens) {
    go_up(microbatch, tokens);
    lower.finish();
    wait_until_live(before);
    go_down(microbatch, tokens);
    upper.finish();
    wait_until_live(before);
  };
  release_unused_memory();
  reset_memory_peaks();
  const int64_t held_without = memory_usage().held_bytes;
  up_and_down(0, most_tokens);
  const int64_t held = memory_usage().peak_held_bytes;
  EXPECT_GE(held - held_without, 2 * message_bytes - 4 * granule_bytes) << "what is sent and what is received are counted";
  EXPECT_LE(held - held_without, 2 * message_bytes + 4 * granule_bytes);
  for (int32_t microbatch = 1; microbatch <= 40; ++microbatch) {
    up_and_down(microbatch, most_tokens - (microbatch * 37) % most_tokens);
    ASSERT_EQ(memory_usage().peak_held_bytes, held) << "microbatch " << microbatch;
  }
}

TEST_F(MessagesOfTwoRanks, AreUnderWayFromWhenTheyAreReadyUntilTheyHaveArrived) {
  const double begin_s = steady_seconds();
  lower.send(message(ActionKind::send_activation, 3, 1), 7, rows_, records_);
  const double posted_s = steady_seconds();
  upper.post(message(ActionKind::receive_activation, 3, 0), most_tokens, 2);
  upper.wait(ActionKind::receive_activation, 1, 3);
  EXPECT_TRUE(lower.sent_spans().empty());
  lower.finish();
  ASSERT_EQ(lower.sent_spans().size(), 1U);
  const SimulatedSpan sent = lower.sent_spans().front();
  EXPECT_EQ(sent.action, 7U);
  EXPECT_GE(sent.start_s, begin_s);
  EXPECT_LE(sent.start_s, posted_s);
  EXPECT_GE(sent.end_s, posted_s);
}

}  // namespace
}  // namespace cotune
