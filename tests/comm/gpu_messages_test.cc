#include "comm/gpu_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "support/guarded_device.h"

namespace cotune {
namespace {

using ::testing::HasSubstr;

class GpuMessagesOfRanks : public ::testing::Test {
 protected:
  ~GpuMessagesOfRanks() override { ::unsetenv("COTUNE_GPU_MESSAGES"); }

  static GpuMessages choice(const std::string& wish, const std::vector<RankHardware>& ranks, const ComputeDevice& device = testing::guarded_device()) {
    wish.empty() ? ::unsetenv("COTUNE_GPU_MESSAGES") : ::setenv("COTUNE_GPU_MESSAGES", wish.c_str(), 1);
    return choose_gpu_messages(device, ranks);
  }
  static std::string mistake(const std::string& wish, const std::vector<RankHardware>& ranks) {
    try {
      choice(wish, ranks);
    } catch (const UserError& error) {
      return error.what();
    }
    return "none";
  }

  const std::vector<RankHardware> own{{"one", "0000:01"}, {"one", "0000:02"}, {"two", "0000:01"}};
  const std::vector<RankHardware> shared{{"one", "0000:01"}, {"two", "0000:01"}, {"two", "0000:01"}};
  const std::vector<RankHardware> without{{"one", "0000:01"}, {"two", ""}};
};

TEST_F(GpuMessagesOfRanks, GoBetweenDevicesWhereEachHasItsOwn) {
  for (const char* wish : {"", "device"}) {
    EXPECT_TRUE(choice(wish, own).between_devices);
    EXPECT_EQ(choice(wish, own).text, "by threads");
  }
  EXPECT_EQ(hardware_of(testing::guarded_device()), "thread");
}

TEST_F(GpuMessagesOfRanks, GoByWayOfTheHostsElsewhereAndSayWhy) {
  EXPECT_FALSE(choice("", shared).between_devices);
  EXPECT_EQ(choice("", shared).text, "by way of the hosts: ranks 1 and 2 share a GPU of two");
  EXPECT_EQ(choice("", without).text, "by way of the hosts: rank 1 on two has no NCCL");
  EXPECT_FALSE(choice("host", own).between_devices);
  EXPECT_THAT(choice("host", own).text, HasSubstr("COTUNE_GPU_MESSAGES"));
  const GpuMessages of_cpus = choice("", {{"one", ""}, {"two", ""}}, ComputeDevice());
  EXPECT_FALSE(of_cpus.between_devices);
  EXPECT_EQ(of_cpus.text, "");
  EXPECT_EQ(hardware_of(ComputeDevice()), "");
}

TEST_F(GpuMessagesOfRanks, WhatIsWishedForAndCannotBeIsAMistake) {
  EXPECT_EQ(mistake("device", shared), "COTUNE_GPU_MESSAGES: is `device`, but ranks 1 and 2 share a GPU of two");
  EXPECT_EQ(mistake("nccl", own), "COTUNE_GPU_MESSAGES: is `nccl`; accepted: device (NCCL), host");
}

}  // namespace
}  // namespace cotune
