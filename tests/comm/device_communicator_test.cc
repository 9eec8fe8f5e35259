#include "comm/device_communicator.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <random>

#include "comm/ending_of.h"
#include "comm/rank_threads.h"
#include "support/guarded_device.h"
#include "support/thread_device_groups.h"

namespace cotune {
namespace {

using ::testing::HasSubstr;
using testing::ThreadDeviceGroups;

at::Device device() { return testing::guarded_device().device; }
at::TensorOptions on_device(at::ScalarType dtype = at::kFloat) { return at::TensorOptions().dtype(dtype).device(device()); }

std::vector<std::unique_ptr<Communicator>> device_ranks(int32_t size) {
  std::vector<std::unique_ptr<Communicator>> ranks = thread_communicators(size);
  for (auto& rank : ranks) rank = device_communicator(std::move(rank), ThreadDeviceGroups::instance(), device());
  return ranks;
}

struct Planned {
  int32_t from, to;
  Channel channel;
  int64_t numel;
  bool is_on_device;
};

/// Of both kinds of memory in the same channels, in both directions.
TEST(DeviceMessages, KeepTheirOrderBesideThoseOfTheHost) {
  constexpr int32_t size = 3;
  std::mt19937 random(7);
  std::vector<Planned> messages;
  for (int i = 0; i < 300; ++i) {
    const auto from = static_cast<int32_t>(random() % size);
    messages.push_back({from, static_cast<int32_t>((from + 1 + random() % (size - 1)) % size),
                        random() % 2 == 0 ? Channel::activation : Channel::error, static_cast<int64_t>(random() % (random() % 4 == 0 ? 20000 : 20)),
                        random() % 3 > 0});
  }
  auto ranks = device_ranks(size);
  on_every_rank(ranks, [&](Communicator& self) {
    const auto content = [&](size_t i) { return at::arange(messages[i].numel, at::kFloat) + static_cast<double>(i); };
    std::vector<std::pair<size_t, std::pair<at::Tensor, std::shared_ptr<Transfer>>>> received;
    std::vector<std::shared_ptr<Transfer>> sends;
    for (size_t i = 0; i < messages.size(); ++i) {
      const Planned& message = messages[i];
      const at::Device place = message.is_on_device ? device() : at::Device(at::kCPU);
      if (message.from == self.rank()) {
        sends.push_back(self.send(content(i).to(place), message.to, message.channel));
      } else if (message.to == self.rank()) {
        const at::Tensor buffer = at::empty({message.numel}, at::TensorOptions().dtype(at::kFloat).device(place));
        received.push_back({i, {buffer, self.receive(buffer, message.from, message.channel)}});
      }
    }
    for (auto& [i, arrival] : received) {
      arrival.second->wait();
      EXPECT_TRUE(at::equal(arrival.first.cpu(), content(i))) << i;
    }
    for (auto& send : sends) send->wait();
    self.barrier();
  });
}

/// The rendezvous: neither device is told before the data are computed and the receive is posted.
TEST(DeviceMessages, BeginWhenBothEndsAreReady) {
  ThreadDeviceGroups& groups = ThreadDeviceGroups::instance();
  auto ranks = device_ranks(2);
  const at::Tensor data = at::full({1000}, 3.0, on_device()), buffer = at::zeros({1000}, on_device());
  const int64_t before = groups.messages_begun();
  const auto stays_so = [&](const char* why) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(groups.messages_begun(), before) << why;
  };
  groups.hold(true);
  const auto send = ranks[0]->send(data, 1, Channel::activation);
  stays_so("data that are not computed are sent");
  groups.hold(false);
  stays_so("what nobody has asked for is sent");
  EXPECT_FALSE(send->done());
  const auto receive = ranks[1]->receive(buffer, 0, Channel::activation);
  receive->wait();
  send->wait();
  EXPECT_EQ(groups.messages_begun(), before + 2);
  EXPECT_TRUE(at::equal(buffer.cpu(), data.cpu()));
  // The other way round: a buffer whose memory is still in use.
  groups.hold(true);
  const auto next = ranks[1]->receive(buffer, 0, Channel::activation);
  groups.hold(true);
  std::jthread sender([&] { ranks[0]->send(data, 1, Channel::activation)->wait(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(groups.messages_begun(), before + 2);
  groups.hold(false);
  next->wait();
}

TEST(DeviceCollectives, AreThoseOfTheHost) {
  constexpr int32_t size = 3;
  auto hosts = thread_communicators(size), ranks = device_ranks(size);
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Communicator &host = *hosts[static_cast<size_t>(rank)], &self = *ranks[static_cast<size_t>(rank)];
      const auto compare = [&](const at::Tensor& expected, const at::Tensor& found, const char* what) {
        self.settle();
        EXPECT_TRUE(at::equal(expected, found.cpu())) << what << ", rank " << rank;
      };
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kLong}) {
        for (const int64_t rows : {0, 1, 7}) {
          const at::Tensor own = at::arange(rows * 4, dtype).view({rows, 4}) + rank;
          at::Tensor expected = own.clone(), found = own.to(device());
          host.all_reduce(expected);
          self.all_reduce(found);
          compare(expected, found, "all_reduce");
          expected = own.clone();
          found = own.to(device());
          host.start_all_reduce(expected)->wait();
          const auto started = self.start_all_reduce(found);
          EXPECT_TRUE(started->done());
          started->wait();
          started->wait();
          compare(expected, found, "start_all_reduce");
          expected = own.clone();
          found = own.to(device());
          host.broadcast(expected, 1);
          self.broadcast(found, 1);
          compare(expected, found, "broadcast");
          at::Tensor all = at::zeros({size * rows, 4}, dtype), all_found = all.to(device());
          host.start_all_gather(own, all)->wait();
          self.start_all_gather(own.to(device()), all_found)->wait();
          compare(all, all_found, "all_gather");
          // Rank r gives rank p (r + 2p) mod 3 rows.
          std::vector<int64_t> gives, takes;
          for (int32_t peer = 0; peer < size; ++peer) {
            gives.push_back(rows > 0 ? (rank + 2 * peer) % 3 : 0);
            takes.push_back(rows > 0 ? (peer + 2 * rank) % 3 : 0);
          }
          const auto sum = [](const std::vector<int64_t>& counts) { return counts[0] + counts[1] + counts[2]; };
          const at::Tensor given = at::arange(sum(gives) * 2, dtype).view({sum(gives), 2}) + 10 * rank;
          at::Tensor taken = at::zeros({sum(takes), 2}, dtype), taken_found = taken.to(device());
          host.start_all_to_all(given, gives, taken, takes)->wait();
          self.start_all_to_all(given.to(device()), gives, taken_found, takes)->wait();
          compare(taken, taken_found, "all_to_all");
          at::Tensor on_host = own.clone();
          self.all_reduce(on_host);  // beside them, by way of the host
          self.barrier();
        }
      }
    });
  }
}

/// Everything that rank 0 of 3 can wait for.
const std::vector<std::pair<std::string, std::function<void(Communicator&)>>> waits = {
    {"sending 4000 bytes (activation) to rank 1", [](Communicator& self) { self.send(at::zeros({1000}, on_device()), 1, Channel::activation)->wait(); }},
    {"receiving 4000 bytes (error) from rank 2", [](Communicator& self) { self.receive(at::zeros({1000}, on_device()), 2, Channel::error)->wait(); }},
    {"collectives of 3 ranks", [](Communicator& self) { self.settle(); }},
    {"barrier", [](Communicator& self) { self.barrier(); }},
};

/// Ranks that have met in a collective before, and of which rank 0 has begun another one.
std::vector<std::unique_ptr<Communicator>> met_ranks(at::Tensor& unfinished, std::shared_ptr<Transfer>& transfer) {
  auto ranks = device_ranks(3);
  on_every_rank(ranks, [](Communicator& self) {
    at::Tensor values = at::ones({10}, on_device());
    self.all_reduce(values);
    self.settle();
  });
  transfer = ranks[0]->start_all_reduce(unfinished);
  return ranks;
}

TEST(EndedDeviceGroup, OwnAbortEndsEveryWait) {
  for (const auto& [what, wait] : waits) {
    at::Tensor values = at::ones({10}, on_device());
    std::shared_ptr<Transfer> transfer;
    auto ranks = met_ranks(values, transfer);
    ThreadDeviceGroups::instance().hold(what.starts_with("collectives"));  // which the device never comes to
    std::jthread other;
    const std::string ending = ending_of([&, &wait = wait] {
      other = std::jthread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        ranks[0]->abort();
      });
      wait(*ranks[0]);
    });
    ThreadDeviceGroups::instance().hold(false);
    EXPECT_THAT(ending, HasSubstr("rank 0: " + what));
    EXPECT_THAT(ending, HasSubstr("this rank called abort()"));
    EXPECT_THROW(transfer->wait(), CommunicationEnded);
    EXPECT_THROW(ranks[0]->settle(), CommunicationEnded);
  }
}

TEST(EndedDeviceGroup, TheLossOfAPeerEndsEveryWait) {
  for (const bool drops : {true, false}) {
    for (const auto& [what, wait] : waits) {
      at::Tensor values = at::ones({10}, on_device());
      std::shared_ptr<Transfer> transfer;
      auto ranks = met_ranks(values, transfer);
      ThreadDeviceGroups::instance().hold(what.starts_with("collectives"));
      std::jthread other;
      const std::string ending = ending_of([&, &wait = wait] {
        other = std::jthread([&] {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          for (const size_t rank : {1, 2}) drops ? ranks[rank].reset() : ranks[rank]->abort();
        });
        wait(*ranks[0]);
      });
      ThreadDeviceGroups::instance().hold(false);
      EXPECT_THAT(ending, HasSubstr("rank 0: " + what));
      EXPECT_THAT(ending, ::testing::Not(HasSubstr("this rank called abort()")));
    }
  }
}

TEST(EndedDeviceGroup, WhatTheTransportFindsEndsTheWait) {
  auto ranks = device_ranks(2);
  on_every_rank(ranks, [](Communicator& self) {
    at::Tensor values = at::ones({10}, on_device());
    self.all_reduce(values);
    self.settle();
  });
  ThreadDeviceGroups::instance().fail("a cable was pulled");
  EXPECT_THAT(ending_of([&] { ranks[0]->settle(); }), HasSubstr("a cable was pulled"));
  ThreadDeviceGroups::instance().fail("");
}

/// By several, and by one that comes when a link has closed.
TEST(EndedDeviceGroup, LinksMayBeWatchedBesides) {
  auto ranks = device_ranks(2);
  std::promise<int32_t> first, second, late;
  ranks[0]->watch_links([&](int32_t peer) { first.set_value(peer); });
  ranks[0]->watch_links([&](int32_t peer) { second.set_value(peer); });
  ranks[1].reset();
  EXPECT_EQ(first.get_future().get(), 1);
  EXPECT_EQ(second.get_future().get(), 1);
  ranks[0]->watch_links([&](int32_t peer) { late.set_value(peer); });
  EXPECT_EQ(late.get_future().get(), 1);
}

TEST(DeviceMessages, MistakesOfTheCallerAreFoundBeforeAnythingIsSent) {
  auto ranks = device_ranks(2);
  const at::Tensor buffer = at::zeros({4, 4}, on_device());
  EXPECT_THROW(ranks[0]->send(buffer, 0, Channel::error), std::logic_error);
  EXPECT_THROW(ranks[0]->receive(buffer, 2, Channel::error), std::logic_error);
  EXPECT_THROW(ranks[0]->receive(buffer.t(), 1, Channel::error), std::logic_error);
  EXPECT_THROW(ranks[0]->send(buffer, 1, Channel::error_signal), std::logic_error);
}

}  // namespace
}  // namespace cotune
