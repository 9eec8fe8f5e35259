#include "comm/byte_messages.h"

#include <gtest/gtest.h>

#include "comm/link_speed.h"
#include "comm/rank_threads.h"

namespace cotune {
namespace {

std::vector<uint8_t> bytes_of(size_t count, int32_t key) {
  std::vector<uint8_t> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<uint8_t>(i * 7 + static_cast<size_t>(key));
  return bytes;
}

TEST(ByteMessages, ArriveWholeWhateverTheirLength) {
  auto ranks = thread_communicators(3);
  on_every_rank(ranks, [&](Communicator& self) {
    for (const size_t count : {0, 1, 100, 300001}) {
      for (int32_t root = 0; root < self.size(); ++root) {
        std::vector<uint8_t> bytes = self.rank() == root ? bytes_of(count, root) : bytes_of(5, 99);
        broadcast_bytes(self, bytes, root);
        EXPECT_EQ(bytes, bytes_of(count, root)) << count << " bytes from rank " << root;
      }
      if (self.rank() > 0) send_bytes(self, bytes_of(count, self.rank()), 0);
      for (int32_t peer = 1; self.rank() == 0 && peer < self.size(); ++peer) {
        EXPECT_EQ(receive_bytes(self, peer), bytes_of(count, peer)) << count << " bytes from rank " << peer;
      }
    }
    self.barrier();
  });
}

TEST(LinkSpeed, IsThatOfMessages) {
  auto ranks = thread_communicators(2);
  on_every_rank(ranks, [&](Communicator& self) {
    const LinkSpeed speed = measure_link(self, 1 - self.rank(), self.rank() == 0, at::kCPU);
    EXPECT_GT(speed.latency_s, 0);
    EXPECT_LT(speed.latency_s, 10);
    EXPECT_GT(speed.bytes_per_s, 1e5);
    self.barrier();
  });
}

}  // namespace
}  // namespace cotune
