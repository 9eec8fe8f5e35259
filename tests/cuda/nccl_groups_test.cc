// Groups of GPUs through NCCL: of one GPU, and of two where the machine has them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "comm/device_communicator.h"
#include "support/test_device.h"

namespace cotune {
namespace {

using namespace testing;

class NcclGroups : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!test_device().is_cuda()) GTEST_SKIP() << "groups of GPUs: COTUNE_TEST_DEVICE is not cuda";
    groups = test_compute_device().plugin->groups();
    ASSERT_NE(groups, nullptr) << "the process has no NCCL";
  }

  static void wait(DeviceMark& mark) {
    while (!mark.reached()) std::this_thread::yield();
  }
  static at::TensorOptions here(at::ScalarType dtype = at::kFloat) { return at::TensorOptions().dtype(dtype).device(test_device()); }

  DeviceGroups* groups = nullptr;
};

TEST_F(NcclGroups, SayWhatTheyAre) {
  EXPECT_EQ(groups->name().rfind("NCCL 2.", 0), 0) << groups->name();
  std::set<std::string> hardware;
  const int count = test_compute_device().plugin->device_count();
  for (int index = 0; index < count; ++index) hardware.insert(groups->hardware_of(at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index))));
  EXPECT_EQ(hardware.size(), static_cast<size_t>(count));
  EXPECT_NE(groups->new_id().cpu().view(at::kLong)[1].item<int64_t>(), 0);
}

TEST_F(NcclGroups, OfOneGpuGiveBackWhatTheyAreGiven) {
  const std::unique_ptr<DeviceGroup> group = groups->join(groups->new_id(), 0, 1, test_device(), [] { return false; });
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong, at::kInt, at::kByte}) {
    for (const int64_t rows : {1, 7, 300000}) {
      const at::Tensor given = at::arange(rows * 3, here(at::kLong)).remainder(100).to(dtype).view({rows, 3});
      at::Tensor values = given.clone(), all = at::zeros_like(given), taken = at::zeros_like(given);
      wait(*group->all_reduce(values));
      EXPECT_TRUE(at::equal(values, given));
      wait(*group->broadcast(values, 0));
      EXPECT_TRUE(at::equal(values, given));
      wait(*group->all_gather(given, all));
      EXPECT_TRUE(at::equal(all, given));
      wait(*group->all_to_all(given, {rows}, taken, {rows}));
      EXPECT_TRUE(at::equal(taken, given));
    }
  }
  EXPECT_EQ(group->failure(), "");
}

/// Events of streams: a collective comes after what the thread has given the device, and what follows after the collective.
TEST_F(NcclGroups, CollectivesAreOrderedAmongWhatTheDeviceIsGiven) {
  const std::unique_ptr<DeviceGroup> group = groups->join(groups->new_id(), 0, 1, test_device(), [] { return false; });
  const at::Tensor factor = at::eye(2048, here()).mul(1.0009765625);
  for (int repetition = 0; repetition < 10; ++repetition) {
    at::Tensor values = at::ones({2048, 2048}, here()), expected = at::ones({2048, 2048}, here());
    for (int i = 0; i < 20; ++i) values = values.matmul(factor);
    const DeviceGroup::Mark mark = group->all_reduce(values);
    mark->order_after();
    const at::Tensor after = values.matmul(factor);
    for (int i = 0; i < 21; ++i) expected = expected.matmul(factor);
    EXPECT_TRUE(at::equal(after, expected));
    EXPECT_TRUE(mark->reached());
  }
}

TEST_F(NcclGroups, AbortMayComeAtAnyTime) {
  for (int repetition = 0; repetition < 3; ++repetition) {
    const std::unique_ptr<DeviceGroup> group = groups->join(groups->new_id(), 0, 1, test_device(), [] { return false; });
    at::Tensor values = at::ones({1 << 20}, here());
    const DeviceGroup::Mark mark = group->all_reduce(values);
    group->abort();
    wait(*mark);
    EXPECT_EQ(group->failure(), "");
    EXPECT_ANY_THROW(group->all_reduce(values));
    group->abort();
  }
}

/// Threads with a GPU each exchange messages and sums in turns.
TEST_F(NcclGroups, OfTwoGpusCarryMessagesAndSums) {
  DevicePlugin* const plugin = test_compute_device().plugin;
  if (plugin->device_count() < 2) GTEST_SKIP() << "one GPU";
  auto hosts = thread_communicators(2);
  std::vector<std::jthread> threads;
  for (int32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(rank));
      plugin->activate(rank);
      const std::unique_ptr<Communicator> self = device_communicator(std::move(hosts[static_cast<size_t>(rank)]), *groups, device);
      const at::TensorOptions there = at::TensorOptions().dtype(at::kFloat).device(device);
      for (int64_t round = 1; round <= 20; ++round) {
        const int64_t size = round * round * 997;
        const at::Tensor mine = at::full({size}, static_cast<double>(rank + round), there), other = at::zeros({size}, there);
        const auto receive = self->receive(other, 1 - rank, Channel::error);
        const auto send = self->send(mine, 1 - rank, Channel::error);
        at::Tensor sum = at::full({size}, static_cast<double>(1 + rank), there);
        self->all_reduce(sum);
        const at::Tensor twice = sum * 2;
        receive->wait();
        send->wait();
        self->settle();
        EXPECT_TRUE(at::equal(other.cpu(), at::full({size}, static_cast<double>(1 - rank + round))));
        EXPECT_TRUE(at::equal(twice.cpu(), at::full({size}, 6.0)));
        at::Tensor taken = at::zeros({2, 5}, there);
        self->start_all_to_all(at::arange(10, there).view({2, 5}) + 100 * rank, {1, 1}, taken, {1, 1})->wait();
        self->settle();
        EXPECT_TRUE(at::equal(taken.cpu(), at::stack({at::arange(5) + 5 * rank, at::arange(5) + 5 * rank + 100}).to(at::kFloat)));
      }
      self->barrier();
    });
  }
}

}  // namespace
}  // namespace cotune
