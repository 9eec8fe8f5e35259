#include "plan/shapes/cluster_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"

namespace cotune {
namespace {

std::string mistakes(const std::string& text) {
  try {
    parse_cluster_file(text, "c.yaml");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

const std::string head = "cotune_cluster: 1\n";

TEST(ClusterFile, NamesNodesDevicesAndLinks) {
  const ClusterSpec cluster = parse_cluster_file(head +
                                                     "nodes:\n"
                                                     "  - {name: a100, count: 2, devices: 8, device: a100-40, link: nvlink-600}\n"
                                                     "  - device: {preset: H100, memory: 94GiB, bfloat16: 800TFLOP/s}\n"
                                                     "network: {bandwidth: 100 Gbit/s, latency: 4us}\n",
                                                 "c.yaml");
  ASSERT_EQ(cluster.nodes.size(), 2u);
  EXPECT_EQ(cluster.device_count(), 17);
  const NodeGroup& first = cluster.nodes[0];
  EXPECT_EQ(first.device, device_preset("A100-40"));
  EXPECT_EQ(first.device.memory_bytes, int64_t{40} << 30);
  EXPECT_EQ(first.device.flops.at("bfloat16"), 312e12);
  EXPECT_EQ(cluster.nodes[1].device.memory_bytes, int64_t{94} << 30);
  EXPECT_EQ(cluster.nodes[1].device.flops.at("bfloat16"), 800e12);
  EXPECT_EQ(cluster.nodes[1].device.flops.at("float32"), 67e12);
  EXPECT_EQ(cluster.network.bandwidth, 12.5e9);
  EXPECT_DOUBLE_EQ(cluster.network.latency, 4e-6);
  EXPECT_EQ(cluster.link_of(first, 8), link_preset("nvlink-600"));
  EXPECT_EQ(cluster.link_of(first, 9), cluster.network);
}

TEST(ClusterFile, OfEveryPresetReadsBackAsItself) {
  ClusterSpec cluster;
  for (const std::string& name : device_preset_names()) {
    NodeGroup group{.name = "n-" + name, .count = 1 + int64_t(cluster.nodes.size()), .devices = 2};
    group.device = device_preset(name);
    group.link = link_preset(link_preset_names()[cluster.nodes.size() % link_preset_names().size()]);
    cluster.nodes.push_back(group);
  }
  cluster.network = link_preset("ethernet-1");
  EXPECT_EQ(parse_cluster_file(to_yaml(cluster), "c.yaml"), cluster) << to_yaml(cluster);
}

TEST(ClusterFile, OfRandomNumbersReadsBackAsItself) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    uint64_t next = 0;
    const auto number = [&] { return 1 + 1e6 * uniform(seed, next++); };
    const auto time = [&] { return 3600 * uniform(seed, next++); };
    const auto share = [&] { return 1 - 0.999 * uniform(seed, next++); };
    ClusterSpec cluster;
    NodeGroup group{.name = "x", .count = 1 + int64_t(uniform_below(seed, next++, 9)), .devices = 2};
    group.device = {.name = "own",
                    .memory_bytes = 1 + int64_t(uniform_below(seed, next++, 1'000'000'000'000)),
                    .flops = {{"float32", 1e6 * number()}},
                    .memory_bandwidth = number(),
                    .compute_efficiency = share(),
                    .memory_efficiency = share(),
                    .usable_memory = share(),
                    .launch_seconds = time(),
                    .cost_per_hour = number(),
                    .communication_share = 0.9 * share()};
    group.link = {number(), time()};
    cluster.network = {number(), time()};
    cluster.nodes = {group};
    ASSERT_EQ(parse_cluster_file(to_yaml(cluster), "c.yaml"), cluster) << to_yaml(cluster);
  }
}

TEST(ClusterFileMistakes, AreAllReportedAtOnceWithLineAndField) {
  EXPECT_EQ(mistakes("nodes:\n"
                     "  - count: 0\n"
                     "    devics: 4\n"
                     "    device: A100\n"
                     "  - device: {memory: 40, bandwidth: 3GB/s}\n"
                     "    devices: 2\n"
                     "  - name: 'a b'\n"
                     "    device: {preset: A40, usable_memory: 1.5, launch: 4, cost_per_hour: -1}\n"
                     "    link: {latency: 3us}\n"
                     "speed: 3\n"),
            "c.yaml: cotune_cluster: `cotune_cluster: 1` is missing: the version of the file's format\n"
            "c.yaml:1: network: is missing: the link between the 3 nodes; accepted: one of nvlink-900, nvlink-600, nvlink-400, "
            "nvlink-112, pcie4, infiniband-400, infiniband-200, infiniband-100, ethernet-10, ethernet-1, or a map of bandwidth "
            "and latency\n"
            "c.yaml:2: nodes[0].count: must be a whole number from 1 to 100000, got 0\n"
            "c.yaml:3: nodes[0].devics: unknown key; did you mean `devices`?\n"
            "c.yaml:4: nodes[0].device: device 'A100' is not known (did you mean 'H100'?); accepted: A40, A100-40, A100-80, "
            "A800-80, A6000, RTX4090, H100, H200, cpu\n"
            "c.yaml:5: nodes[1].device.memory: must be a number with one of B, MiB, GiB, TiB, MB, GB, TB, from 1B to "
            "1000000TB, such as 40GiB, got 40\n"
            "c.yaml:5: nodes[1].device.bandwidth: unknown key; accepted: preset, name, memory, memory_bandwidth, bfloat16, "
            "float32, compute_efficiency, memory_efficiency, usable_memory, launch, cost_per_hour, communication_share\n"
            "c.yaml:5: nodes[1].device.memory_bandwidth: is missing, and there is no `preset`\n"
            "c.yaml:5: nodes[1].device.bfloat16: is missing, and so are `float32` and `preset`\n"
            "c.yaml:5: nodes[1].link: is missing: the link between the 2 devices; accepted: one of nvlink-900, nvlink-600, "
            "nvlink-400, nvlink-112, pcie4, infiniband-400, infiniband-200, infiniband-100, ethernet-10, ethernet-1, or a map "
            "of bandwidth and latency\n"
            "c.yaml:7: nodes[2].name: must be 1 to 100 letters, digits, `.`, `_` and `-`, not starting with `.`, got a b\n"
            "c.yaml:8: nodes[2].device.usable_memory: must be a number from 0.000001 to 1, got 1.5\n"
            "c.yaml:8: nodes[2].device.launch: must be a number with one of us, ms, s, from 0s to 3600s, such as 4us, got 4\n"
            "c.yaml:8: nodes[2].device.cost_per_hour: must be a number from 0 to 1000000000, got -1\n"
            "c.yaml:9: nodes[2].link.bandwidth: is missing: such as 300GB/s\n"
            "c.yaml:10: speed: unknown key; accepted: cotune_cluster, nodes, network");
}

TEST(ClusterFileMistakes, InDevicesAndLinks) {
  const auto device = [](const std::string& text) { return mistakes(head + "nodes:\n  - device: {preset: A40, " + text + "}\n"); };
  EXPECT_EQ(device("memory: 40"),
            "c.yaml:3: nodes[0].device.memory: must be a number with one of B, MiB, GiB, TiB, MB, GB, TB, from 1B to "
            "1000000TB, such as 40GiB, got 40");
  EXPECT_THAT(device("memory: 0GiB"), testing::HasSubstr("got 0GiB"));
  EXPECT_THAT(device("memory: nanGiB"), testing::HasSubstr("got nanGiB"));
  EXPECT_THAT(device("bfloat16: [1]"), testing::HasSubstr("got a list"));
  EXPECT_THAT(device("usable_memory: 1.5"), testing::HasSubstr("must be a number from 0.000001 to 1, got 1.5"));
  EXPECT_THAT(device("compute_efficiency: 0"), testing::HasSubstr("from 0.000001 to 1, got 0"));
  EXPECT_THAT(device("compute_efficiency: 1e-300"), testing::HasSubstr("from 0.000001 to 1, got 1e-300"));
  EXPECT_THAT(device("bfloat16: 1e-300FLOP/s"), testing::HasSubstr("from 0.001GFLOP/s to 1000000000PFLOP/s, such as 312TFLOP/s, got 1e-300FLOP/s"));
  EXPECT_THAT(device("memory_bandwidth: 0B/s"), testing::HasSubstr("from 1B/s to"));
  EXPECT_THAT(device("launch: 1e300s"), testing::HasSubstr("got 1e300s"));
  EXPECT_THAT(device("cost_per_hour: -1"), testing::HasSubstr("got -1"));
  EXPECT_THAT(device("communication_share: 1"), testing::HasSubstr("must be a number from 0 to 0.99, got 1"));
  EXPECT_THAT(device("launch: 4"), testing::HasSubstr("a number with one of us, ms, s, from 0s to 3600s, such as 4us, got 4"));
  EXPECT_EQ(device("memory: 1GiB, memory: 2GiB"), "c.yaml:3: nodes[0].device.memory: given twice; first in line 3");
  EXPECT_EQ(mistakes(head + "nodes:\n  - devices: 2\n    device: {memory: 1GiB}\n"),
            "c.yaml:3: nodes[0].link: is missing: the link between the 2 devices; accepted: one of nvlink-900, nvlink-600, "
            "nvlink-400, nvlink-112, pcie4, infiniband-400, infiniband-200, infiniband-100, ethernet-10, ethernet-1, or a map "
            "of bandwidth and latency\n"
            "c.yaml:4: nodes[0].device.memory_bandwidth: is missing, and there is no `preset`\n"
            "c.yaml:4: nodes[0].device.bfloat16: is missing, and so are `float32` and `preset`");
  EXPECT_THAT(mistakes(head + "nodes: []\n"), testing::HasSubstr("a list of 1 to 1000 kinds of nodes, got an empty list"));
  EXPECT_THAT(mistakes(head + "nodes: [{device: ~}]"), testing::HasSubstr("nodes[0].device: must be the name of a preset, or a map, got nothing"));
  EXPECT_THAT(mistakes("cotune_cluster: 2\nnodes: [{device: A40}]"), testing::HasSubstr("which is 1, got 2"));
  EXPECT_THAT(mistakes(head + "nodes: [{device: A40, devices: 2, link: {latency: 3us}}]"),
              testing::HasSubstr("link.bandwidth: is missing"));
  EXPECT_THAT(mistakes(head + "nodes: [{device: A40, name: x}, {device: A40, name: x}]\nnetwork: pcie4"),
              testing::HasSubstr("`x` is also the name of other nodes"));
}

TEST(ClusterFile, ThatIsDamagedIsRefusedInWords) {
  const std::string good = to_yaml(parse_cluster_file(head + "nodes: [{device: A40, devices: 4, link: pcie4}]", "c.yaml"));
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    std::string text = good;
    for (uint64_t i = 0; i <= uniform_below(seed, 0, 4); ++i) {
      const size_t place = uniform_below(seed, 10 + 3 * i, text.size());
      const char c = "0-:{[]}\n #&*!x\"'%"[uniform_below(seed, 11 + 3 * i, 17)];
      if (uniform_below(seed, 12 + 3 * i, 2)) text[place] = c; else text.erase(place, 1);
    }
    try {
      const ClusterSpec cluster = parse_cluster_file(text, "c.yaml");
      EXPECT_GT(cluster.device_count(), 0);
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), testing::StartsWith("c.yaml")) << text;
    }
  }
}

}  // namespace
}  // namespace cotune
