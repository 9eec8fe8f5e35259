#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>

#include "comm/communicator.h"
#include "comm/ending_of.h"
#include "comm/rank_threads.h"

namespace cotune {
namespace {

using testing::HasSubstr;

/// Everything that rank 0 of 3 can wait for.
const std::vector<std::pair<std::string, std::function<void(Communicator&)>>> waits = {
    {"sending 4000 bytes (activation) to rank 1",
     [](Communicator& self) { self.send(at::zeros({1000}), 1, Channel::activation)->wait(); }},
    {"receiving 4000 bytes (error) from rank 2",
     [](Communicator& self) { self.receive(at::zeros({1000}), 2, Channel::error)->wait(); }},
    {"all_reduce of 4000 bytes",
     [](Communicator& self) {
       at::Tensor values = at::zeros({1000});
       self.all_reduce(values);
     }},
    {"broadcast of 40 bytes",
     [](Communicator& self) {
       at::Tensor values = at::zeros({10});
       self.broadcast(values, 1);
     }},
    {"barrier", [](Communicator& self) { self.barrier(); }},
};

TEST(EndedGroup, AbortFromAnotherThreadEndsEveryWaitUnderWayOrToCome) {
  for (const bool begun : {true, false}) {
    for (const auto& [what, wait] : waits) {
      auto ranks = thread_communicators(3);
      const auto before = ranks[0]->receive(at::zeros({3}), 1, Channel::error);
      std::promise<void> beginning;
      std::jthread other([&] {
        beginning.get_future().wait();
        ranks[0]->abort();
      });
      if (!begun) {
        beginning.set_value();
        other.join();
      }
      const std::string ending = ending_of([&, &wait = wait] {
        if (begun) beginning.set_value();
        wait(*ranks[0]);
      });
      EXPECT_THAT(ending, HasSubstr("rank 0: " + what));
      EXPECT_THAT(ending, HasSubstr("this rank called abort()"));
      EXPECT_THAT(ending_of([&] { before->wait(); }), HasSubstr("rank 0: receiving 12 bytes (error) from rank 1"));
      EXPECT_TRUE(before->done());
    }
  }
}

TEST(EndedGroup, AbortEndsEveryWaitOfThePeersThatNeedsTheRank) {
  for (const bool begun : {true, false}) {
    for (const auto& [what, wait] : waits) {
      auto ranks = thread_communicators(3);
      if (!begun) {
        ranks[1]->abort();
        ranks[2]->abort();
      }
      std::jthread other;
      const std::string ending = ending_of([&, &wait = wait] {
        if (begun) {
          other = std::jthread([&] {
            ranks[1]->abort();
            ranks[2]->abort();
          });
        }
        wait(*ranks[0]);
      });
      EXPECT_THAT(ending, HasSubstr("rank 0: " + what));
    }
  }
}

TEST(EndedGroup, ADroppedCommunicatorEndsThePeersWaits) {
  for (const auto& [what, wait] : waits) {
    auto ranks = thread_communicators(3);
    std::jthread other;
    const std::string ending = ending_of([&, &wait = wait] {
      other = std::jthread([&] {
        ranks[1].reset();
        ranks[2].reset();
      });
      wait(*ranks[0]);
    });
    EXPECT_THAT(ending, HasSubstr("rank 0: " + what));
  }
}

TEST(EndedGroup, AMessageThatArrivedIsNotTrustedAfterAbort) {
  auto ranks = thread_communicators(2);
  const auto send = ranks[0]->send(at::zeros({3}), 1, Channel::error);
  const auto receive = ranks[1]->receive(at::zeros({3}), 0, Channel::error);
  receive->wait();
  ranks[1]->abort();
  EXPECT_TRUE(receive->done());
  EXPECT_THROW(receive->wait(), CommunicationEnded);
}

TEST(EndedGroup, AbortOfAllRanksAtOnceInTheMiddleOfTraffic) {
  for (int repetition = 0; repetition < 10; ++repetition) {
    auto ranks = thread_communicators(3);
    std::atomic<int> exchanges = 0;
    std::vector<std::jthread> aborting;
    for (auto& rank : ranks) {
      aborting.emplace_back([&] {
        while (exchanges < 20 * (repetition + 1)) std::this_thread::yield();
        rank->abort();
      });
    }
    on_every_rank(ranks, [&](Communicator& self) {
      EXPECT_THAT(ending_of([&] {
                    for (;;) {
                      const at::Tensor mine = at::zeros({30000}), other = at::zeros({30000});
                      const auto receive = self.receive(other, (self.rank() + 2) % 3, Channel::activation);
                      const auto send = self.send(mine, (self.rank() + 1) % 3, Channel::activation);
                      at::Tensor sum = at::ones({100});
                      self.all_reduce(sum);
                      receive->wait();
                      send->wait();
                      ++exchanges;
                    }
                  }),
                  HasSubstr("rank " + std::to_string(self.rank())));
    });
  }
}

/// Gloo tells nobody of what it is writing when the link closes.
TEST(EndedGroup, WhatIsOnItsWayWhenTheLinkClosesEnds) {
  constexpr int64_t bytes = int64_t{1} << 28;
  for (const bool sender_goes : {false, true}) {
    for (const bool collective : {false, true}) {
      auto ranks = thread_communicators(2);
      at::Tensor given = at::ones({bytes}, at::kByte), taken = at::zeros({bytes}, at::kByte);
      const auto gone = static_cast<size_t>(sender_goes), left = 1 - gone;
      std::vector<std::string> endings(2);
      std::atomic<int> ended = 0;
      {
        std::vector<std::jthread> threads;
        for (const size_t rank : {0, 1}) {
          threads.emplace_back([&, rank] {
            endings[rank] = ending_of([&] {
              Communicator& self = *ranks[rank];
              at::Tensor& buffer = rank == 1 ? given : taken;
              if (collective) {
                self.all_reduce(buffer);
              } else {
                (rank == 1 ? self.send(buffer, 0, Channel::activation) : self.receive(buffer, 1, Channel::activation))->wait();
              }
            });
            ++ended;
          });
        }
        // The first bytes are there, and most are not.
        const volatile uint8_t* arrived = taken.const_data_ptr<uint8_t>();
        while (*arrived == 0 && ended == 0) std::this_thread::yield();
        ranks[gone]->abort();
      }
      for (const std::string& ending : endings) EXPECT_THAT(ending, HasSubstr("rank ")) << (collective ? "all_reduce" : "a message") << ", " << gone << " goes";
      ranks[left].reset();
    }
  }
}

TEST(EndedGroup, ALinkThatThePeerClosedEndsTheMessageAndNotTheProcess) {
  const auto ranks = thread_communicators(2);
  struct sigaction action {};
  ASSERT_EQ(sigaction(SIGPIPE, nullptr, &action), 0);
  EXPECT_EQ(action.sa_handler, SIG_IGN);
}

size_t entries(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator());
}

/// The kernel takes a thread from the list some time after it was joined.
size_t threads_once_at_most(size_t limit) {
  for (int i = 0; i < 10000 && entries("/proc/self/task") > limit; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return entries("/proc/self/task");
}

TEST(EndedGroup, GroupsLeaveNoThreadAndNoDescriptor) {
  const auto one_group = [](int number) {
    auto ranks = thread_communicators(2);
    on_every_rank(ranks, [&](Communicator& self) {
      if (self.rank() == 1) self.send(at::zeros({1000}), 0, Channel::error);
      if (self.rank() == 0) self.receive(at::zeros({1000}), 1, Channel::error)->wait();
      at::Tensor sum = at::ones({100});
      self.all_reduce(sum);
      self.barrier();
    });
    if (number % 3 == 0) ranks[0]->abort();
    if (number % 3 == 1) ranks[0]->receive(at::zeros({10}), 1, Channel::activation);
  };
  one_group(0);  // what c10d starts once for the process
  const size_t threads = entries("/proc/self/task"), descriptors = entries("/proc/self/fd");
  for (int number = 0; number < 100; ++number) one_group(number);
  EXPECT_EQ(entries("/proc/self/fd"), descriptors);
  EXPECT_LE(threads_once_at_most(threads), threads);
}

}  // namespace
}  // namespace cotune
