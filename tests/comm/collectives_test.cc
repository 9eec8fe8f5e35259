#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <filesystem>
#include <future>
#include <numeric>

#include "comm/communicator.h"
#include "comm/rank_threads.h"

namespace cotune {
namespace {

at::Tensor values_of(int32_t rank, int64_t numel, at::ScalarType dtype) {
  return at::arange(numel, at::kDouble).mul(rank + 1).remainder(11).to(dtype);
}

TEST(Collectives, AllReduceSumsWholeNumbersOfEveryDtypeAndSize) {
  for (const int32_t size : {1, 2, 3, 5}) {
    auto ranks = thread_communicators(size);
    on_every_rank(ranks, [&](Communicator& self) {
      EXPECT_EQ(self.size(), size);
      for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kLong, at::kInt}) {
        for (const int64_t numel : {0, 1, 2, 7, 1000, 300001}) {
          at::Tensor values = values_of(self.rank(), numel, dtype), expected = at::zeros({numel}, dtype);
          for (int32_t rank = 0; rank < size; ++rank) expected += values_of(rank, numel, dtype);
          self.all_reduce(values);
          EXPECT_TRUE(at::equal(values, expected)) << size << " ranks, " << dtype << ", " << numel;
        }
      }
    });
  }
}

TEST(Collectives, AllReduceGivesEveryRankTheSameBitsEveryTime) {
  constexpr int32_t size = 4;
  auto ranks = thread_communicators(size);
  std::vector<at::Tensor> inputs, sums(size);
  for (int32_t rank = 0; rank < size; ++rank) inputs.push_back(at::randn({10007}));
  for (int repetition = 0; repetition < 5; ++repetition) {
    const at::Tensor before = sums[0];
    on_every_rank(ranks, [&](Communicator& self) {
      sums[self.rank()] = inputs[self.rank()].clone();
      self.all_reduce(sums[self.rank()]);
    });
    for (const at::Tensor& sum : sums) EXPECT_TRUE(at::equal(sum, sums[0]));
    EXPECT_TRUE(!before.defined() || at::equal(before, sums[0]));
  }
}

TEST(Collectives, AllReducesThatAreStartedHaveTheBitsOfThoseThatAreWaitedFor) {
  constexpr int32_t size = 4;
  auto ranks = thread_communicators(size);
  std::vector<at::Tensor> inputs;
  for (int32_t rank = 0; rank < size; ++rank) inputs.push_back(at::randn({5, 10007}));
  on_every_rank(ranks, [&](Communicator& self) {
    const at::Tensor& own = inputs[static_cast<size_t>(self.rank())];
    std::vector<at::Tensor> started, waited;
    std::vector<std::shared_ptr<Transfer>> transfers;
    for (int64_t row = 0; row < 5; ++row) {
      started.push_back(own[row].clone());
      transfers.push_back(self.start_all_reduce(started.back()));
    }
    at::Tensor nothing = at::empty({0});
    self.start_all_reduce(nothing)->wait();
    for (int64_t row = 0; row < 5; ++row) self.all_reduce(waited.emplace_back(own[row].clone()));
    for (size_t row = 5; row-- > 0;) {
      transfers[row]->wait();
      transfers[row]->wait();
      EXPECT_TRUE(transfers[row]->done());
      EXPECT_TRUE(at::equal(started[row], waited[row]));
    }
  });
}

TEST(Collectives, AGroupMayEndWhileAllReducesAreUnderWay) {
  auto ranks = thread_communicators(2);
  on_every_rank(ranks, [](Communicator& self) {
    at::Tensor values = at::ones({1000});
    if (self.rank() == 0) self.start_all_reduce(values);  // nobody answers, and nobody waits
  });
  at::Tensor values = at::ones({1000});
  const std::shared_ptr<Transfer> transfer = ranks[1]->start_all_reduce(values);
  ranks[1]->abort();
  EXPECT_THROW(transfer->wait(), CommunicationEnded);
}

TEST(Collectives, BroadcastTakesTheValuesOfAnyRoot) {
  auto ranks = thread_communicators(3);
  on_every_rank(ranks, [](Communicator& self) {
    for (const auto dtype : {at::kFloat, at::kLong, at::kByte}) {
      for (const int64_t numel : {0, 1, 1000, 300001}) {
        for (int32_t root = 0; root < 3; ++root) {
          at::Tensor values = values_of(self.rank(), numel, dtype);
          self.broadcast(values, root);
          EXPECT_TRUE(at::equal(values, values_of(root, numel, dtype)));
        }
      }
    }
    at::Tensor values = at::zeros({3});
    EXPECT_THROW(self.broadcast(values, 3), std::logic_error);
  });
}

TEST(Collectives, NobodyLeavesABarrierBeforeAllHaveCome) {
  constexpr int32_t size = 4;
  auto ranks = thread_communicators(size);
  std::atomic<int> arrived = 0;
  on_every_rank(ranks, [&](Communicator& self) {
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      self.barrier();
      EXPECT_GE(arrived, size * round);
      self.barrier();
    }
  });
}

TEST(Collectives, GoOnWhileMessagesAreUnderWay) {
  auto ranks = thread_communicators(2);
  on_every_rank(ranks, [](Communicator& self) {
    const int32_t peer = 1 - self.rank();
    for (int round = 0; round < 30; ++round) {
      const at::Tensor mine = at::full({100000}, round + 0.5), other = at::empty({100000});
      const auto receive = self.receive(other, peer, Channel::activation);
      const auto send = self.send(mine, peer, Channel::activation);
      at::Tensor sum = at::full({1000}, double(round));
      self.all_reduce(sum);
      EXPECT_EQ(sum[999].item<double>(), 2.0 * round);
      receive->wait();
      send->wait();
      EXPECT_TRUE(at::equal(mine, other));
    }
  });
}

int batch_threads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    count += sched_getscheduler(std::stoi(task.path().filename())) == SCHED_BATCH;
  }
  return count;
}

TEST(Collectives, AllToAllBringsEveryRankItsRowsOfAllOthers) {
  constexpr int32_t size = 3;
  auto ranks = thread_communicators(size);
  // Of rank a for rank b; some are none.
  const std::vector<std::vector<int64_t>> counts{{2, 0, 3}, {1, 4, 0}, {0, 0, 0}};
  const auto first = [&](size_t from, size_t to) { return std::accumulate(counts[from].begin(), counts[from].begin() + static_cast<int64_t>(to), int64_t{0}); };
  on_every_rank(ranks, [&](Communicator& self) {
    const auto own = static_cast<size_t>(self.rank());
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      const auto rows_of = [&](size_t from) {
        return at::arange(first(from, size) * 5).add(100 * static_cast<int64_t>(from)).remainder(97).view({-1, 5}).to(dtype);
      };
      std::vector<int64_t> comes;
      std::vector<at::Tensor> expected;
      for (size_t from = 0; from < size; ++from) {
        comes.push_back(counts[from][own]);
        expected.push_back(rows_of(from).narrow(0, first(from, own), counts[from][own]));
      }
      at::Tensor taken = at::full({comes[0] + comes[1] + comes[2], 5}, -1, dtype);
      self.start_all_to_all(rows_of(own), counts[own], taken, comes)->wait();
      EXPECT_TRUE(at::equal(taken, at::cat(expected))) << "rank " << own << ", " << dtype;
    }
  });
}

TEST(Collectives, GatherTheRowsOfAllRanksInTheirOrder) {
  auto ranks = thread_communicators(3);
  on_every_rank(ranks, [](Communicator& self) {
    for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      for (const int64_t count : {0, 1, 7}) {
        const auto rows_of = [&](int64_t rank) { return at::arange(count * 5, at::kDouble).add(100 * rank).view({count, 5}).to(dtype); };
        at::Tensor all = at::full({3 * count, 5}, -1, dtype);
        self.start_all_gather(rows_of(self.rank()), all)->wait();
        EXPECT_TRUE(at::equal(all, at::cat({rows_of(0), rows_of(1), rows_of(2)}))) << "rank " << self.rank() << ", " << count << " rows, " << dtype;
      }
    }
  });
}

/// Otherwise an all_reduce takes a tick of the scheduler where cores are scarce (gloo_communicator.cc).
TEST(Collectives, ThreadsThatMoveTheBytesDoNotDisplaceThoseThatCompute) {
  const bool can_tell = std::async(std::launch::async, [] {
                          const sched_param none{};
                          return sched_setscheduler(0, SCHED_BATCH, &none) == 0 && sched_getscheduler(0) == SCHED_BATCH;
                        }).get();
  if (!can_tell) GTEST_SKIP() << "this system has no batch threads";
  const auto ranks = thread_communicators(3);
  EXPECT_GE(batch_threads(), 3);
  EXPECT_NE(sched_getscheduler(0), SCHED_BATCH);
}

}  // namespace
}  // namespace cotune
