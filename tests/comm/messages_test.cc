#define USE_DISTRIBUTED
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <random>
#include <thread>

#include "comm/gloo_communicator.h"
#include "comm/rank_threads.h"

namespace cotune {
namespace {

constexpr int32_t rank_count = 4;

struct PlannedMessage {
  int32_t from, to;
  Channel channel;
  at::ScalarType dtype;
  int64_t numel;
  int32_t number;  ///< in the whole list; what the message holds follows from it

  at::Tensor content() const { return at::arange(numel, at::kLong).add(number).remainder(100).to(dtype); }
};

/// A list that all ranks know. Sizes reach from none to more than a socket buffers.
std::vector<PlannedMessage> random_messages(int count, uint32_t seed) {
  std::mt19937 random(seed);
  const std::vector<at::ScalarType> dtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                              at::kLong,  at::kByte,   at::kBool};
  std::vector<PlannedMessage> messages;
  for (int number = 0; number < count; ++number) {
    PlannedMessage message;
    message.from = random() % rank_count;
    message.to = (message.from + 1 + random() % (rank_count - 1)) % rank_count;
    message.channel = random() % 2 ? Channel::activation : Channel::error;
    message.dtype = dtypes[random() % dtypes.size()];
    const int64_t limits[] = {1, 10, 1000, 100000};
    message.numel = random() % limits[random() % 4];
    if (number % 97 == 0) message.numel = 1 << 20;
    message.number = number;
    messages.push_back(message);
  }
  return messages;
}

TEST(Messages, KeepTheirOrderInEveryChannelBetweenFourRanks) {
  const auto messages = random_messages(1000, 20);
  auto ranks = thread_communicators(rank_count);
  on_every_rank(ranks, [&](Communicator& self) {
    std::mt19937 random(self.rank());
    std::vector<std::shared_ptr<Transfer>> sends;
    std::vector<std::pair<const PlannedMessage*, std::pair<at::Tensor, std::shared_ptr<Transfer>>>> received;
    for (const PlannedMessage& message : messages) {
      if (message.from == self.rank()) {
        auto send = self.send(message.content(), message.to, message.channel);
        if (random() % 2) sends.push_back(send);  // the others travel although nobody holds them
      } else if (message.to == self.rank()) {
        const at::Tensor buffer = at::empty({message.numel}, message.dtype);
        received.push_back({&message, {buffer, self.receive(buffer, message.from, message.channel)}});
      }
    }
    std::shuffle(received.begin(), received.end(), random);  // waits come in any order
    for (auto& [message, arrival] : received) {
      arrival.second->wait();
      EXPECT_TRUE(arrival.second->done());
      EXPECT_TRUE(at::equal(arrival.first, message->content())) << message->number;
    }
    for (auto& send : sends) send->wait();
    self.barrier();
  });
}

TEST(Messages, SayWhenTheyWereOverAndNotWhenSomebodyWaited) {
  const auto now_s = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  auto ranks = thread_communicators(2);
  const auto send = ranks[0]->send(at::ones({1000}), 1, Channel::activation);
  const double posted_s = now_s();
  ranks[1]->receive(at::empty({1000}), 0, Channel::activation)->wait();
  while (!send->done()) std::this_thread::yield();
  const double done_s = now_s();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  send->wait();
  EXPECT_GE(send->over_s(), posted_s);
  EXPECT_LE(send->over_s(), done_s);
}

TEST(Messages, OfOneKindDoNotWaitForTheOther) {
  auto ranks = thread_communicators(2);
  on_every_rank(ranks, [](Communicator& self) {
    const int32_t peer = 1 - self.rank();
    const at::Tensor large = at::full({1 << 21}, 3.0), small = at::full({5}, 4.0);
    if (self.rank() == 0) {
      const auto first = self.send(large, peer, Channel::activation);
      for (int i = 0; i < 10; ++i) self.send(small, peer, Channel::error)->wait();
      EXPECT_FALSE(first->done());  // its receive is posted after the answer below
      const at::Tensor answer = at::empty({5});
      self.send(answer, peer, Channel::error)->wait();
      first->wait();
    } else {
      at::Tensor buffer = at::empty({5});
      for (int i = 0; i < 11; ++i) self.receive(buffer, peer, Channel::error)->wait();
      at::Tensor target = at::zeros({1 << 21});
      self.receive(target, peer, Channel::activation)->wait();
      EXPECT_TRUE(at::equal(target, large));
    }
    self.barrier();
  });
}

TEST(Messages, ASendWaitsForItsReceiveWhileOthersGoOn) {
  auto ranks = thread_communicators(3);
  const at::Tensor held = at::full({100000}, 7.0);
  const auto outstanding = ranks[0]->send(held, 1, Channel::activation);
  on_every_rank(ranks, [&](Communicator& self) {
    const int32_t next = (self.rank() + 1) % 3, previous = (self.rank() + 2) % 3;
    at::Tensor sum = at::ones({10}, at::kDouble);
    for (int round = 0; round < 20; ++round) {
      const at::Tensor mine = at::full({1000}, self.rank() * 100.0 + round), other = at::empty({1000});
      const auto receive = self.receive(other, previous, Channel::error);
      const auto send = self.send(mine, next, Channel::error);
      receive->wait();
      send->wait();
      EXPECT_EQ(other[999].item<double>(), previous * 100.0 + round);
      self.all_reduce(sum);
    }
    EXPECT_EQ(sum[0].item<double>(), std::pow(3.0, 20));
    self.barrier();
  });
  EXPECT_FALSE(outstanding->done());
  const at::Tensor target = at::empty({100000});
  ranks[1]->receive(target, 0, Channel::activation)->wait();
  outstanding->wait();
  EXPECT_TRUE(outstanding->done());
  EXPECT_TRUE(at::equal(target, held));
}

TEST(Messages, MayTakeLongerThanToJoin) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  constexpr std::chrono::milliseconds joining{1000};
  std::unique_ptr<Communicator> second;
  std::jthread other([&] { second = gloo_communicator(store, 1, 2, "127.0.0.1", joining); });
  const std::unique_ptr<Communicator> first = gloo_communicator(store, 0, 2, "127.0.0.1", joining);
  other.join();
  const at::Tensor values = at::full({1000}, 4.0), target = at::zeros({1000});
  const auto send = first->send(values, 1, Channel::activation);
  const auto early = first->receive(target, 1, Channel::error);
  std::this_thread::sleep_for(2 * joining);
  const at::Tensor arrived = at::zeros({1000});
  second->receive(arrived, 0, Channel::activation)->wait();
  second->send(arrived, 0, Channel::error)->wait();
  send->wait();
  early->wait();
  EXPECT_TRUE(at::equal(target, values));
}

TEST(Messages, MistakesOfTheCallerAreFoundBeforeAnythingIsSent) {
  auto ranks = thread_communicators(2);
  const at::Tensor buffer = at::zeros({4, 4});
  EXPECT_THROW(ranks[0]->send(buffer, 0, Channel::error), std::logic_error);
  EXPECT_THROW(ranks[0]->send(buffer, 2, Channel::error), std::logic_error);
  EXPECT_THROW(ranks[0]->receive(buffer, -1, Channel::error), std::logic_error);
  EXPECT_THROW(ranks[0]->receive(buffer.t(), 1, Channel::error), std::logic_error);
}

}  // namespace
}  // namespace cotune
