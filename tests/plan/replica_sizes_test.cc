#include "plan/shapes/replica_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace cotune {
namespace {

using testing::ElementsAre;

NodeGroup nodes(int64_t count, int64_t devices) { return {.name = "n", .count = count, .devices = devices, .device = {}, .link = {}}; }

/// Numbers of stages up to 64.
std::vector<int64_t> usual_stages(const NodeGroup& group, int64_t tensor_parallel) {
  std::vector<int64_t> found;
  for (int64_t stages = 1; stages * tensor_parallel <= 64; ++stages) {
    if (is_usual_size(group, tensor_parallel, stages)) found.push_back(stages);
  }
  return found;
}

TEST(ReplicaSizes, StandInANodeOrOnWholeOnes) {
  const NodeGroup group = nodes(3, 4);
  std::vector<int64_t> standing;
  for (int64_t devices = 1; devices <= 16; ++devices) {
    if (stands_on_nodes(group, devices)) standing.push_back(devices);
  }
  EXPECT_THAT(standing, ElementsAre(1, 2, 3, 4, 8, 12));
}

TEST(ReplicaSizes, FillNodesAndClustersOfAnyNumberOfDevices) {
  EXPECT_THAT(usual_stages(nodes(1, 3), 1), ElementsAre(1, 2, 3));
  EXPECT_THAT(usual_stages(nodes(1, 7), 1), ElementsAre(1, 2, 4, 7));
  EXPECT_THAT(usual_stages(nodes(1, 12), 1), ElementsAre(1, 2, 3, 4, 6, 8, 12));
  EXPECT_THAT(usual_stages(nodes(1, 12), 2), ElementsAre(1, 2, 3, 4, 6));
  EXPECT_THAT(usual_stages(nodes(5, 1), 1), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(usual_stages(nodes(3, 8), 1), ElementsAre(1, 2, 4, 8, 16, 24));
  EXPECT_THAT(usual_stages(nodes(3, 8), 8), ElementsAre(1, 2, 3));
}

TEST(ReplicaSizes, ArePowersOfTwoWhereNodesAndTheirDevicesAre) {
  EXPECT_THAT(usual_stages(nodes(4, 8), 1), ElementsAre(1, 2, 4, 8, 16, 32));
  EXPECT_THAT(usual_stages(nodes(4, 8), 2), ElementsAre(1, 2, 4, 8, 16));
}

}  // namespace
}  // namespace cotune
