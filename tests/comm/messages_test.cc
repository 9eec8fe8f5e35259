#include <gtest/gtest.h>

#include "comm/communicator.h"
#include "comm/rank_threads.h"

namespace cotune {
namespace {

TEST(Messages, GoBothWaysBetweenTwoThreads) {
  auto ranks = thread_communicators(2);
  on_every_rank(ranks, [](Communicator& self) {
    const at::Tensor mine = at::full({300, 1000}, self.rank() + 1.0);
    const at::Tensor other = at::empty({300, 1000});
    const int32_t peer = 1 - self.rank();
    const auto received = self.receive(other, peer, Channel::activation);
    const auto sent = self.send(mine, peer, Channel::activation);
    received->wait();
    sent->wait();
    EXPECT_TRUE(received->done());
    EXPECT_TRUE(sent->done());
    EXPECT_TRUE(other.eq(peer + 1.0).all().item<bool>());
  });
}

TEST(Messages, AbortWakesAReceiveAndASend) {
  for (const bool sends : {false, true}) {
    auto ranks = thread_communicators(2);
    const at::Tensor buffer = at::zeros({1000});
    const auto transfer = sends ? ranks[0]->send(buffer, 1, Channel::error) : ranks[0]->receive(buffer, 1, Channel::error);
    EXPECT_FALSE(transfer->done());
    std::jthread other([&] { ranks[0]->abort(); });
    EXPECT_THROW(transfer->wait(), CommunicationEnded);
    EXPECT_THROW(ranks[0]->receive(buffer, 1, Channel::error), CommunicationEnded);
    EXPECT_THROW(ranks[1]->receive(buffer, 0, Channel::error)->wait(), CommunicationEnded);
  }
}

}  // namespace
}  // namespace cotune
