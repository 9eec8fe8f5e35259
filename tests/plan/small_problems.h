/// Jobs and clusters of a few numbers, for tests of planning.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/make_plan.h"

namespace cotune {

/// LoRA on q, v and down.
inline JobShape job_of(const ModelConfig& model, int32_t index, int64_t batch_size,
                       const std::vector<int64_t>& lengths, int64_t rank) {
  JobSpec spec;
  spec.adapter.r = rank;
  spec.adapter.target_modules = {"q_proj", "v_proj", "down_proj"};
  return {.name = "job-" + std::to_string(index),
          .batch_size = batch_size,
          .lengths = histogram_of(lengths),
          .adapters = adapter_shapes(spec, index, model)};
}

/// Nodes of one kind over InfiniBand, their devices over PCIe, for two an hour. memory_share: of what the preset has.
inline ClusterSpec cluster_of(int64_t nodes, int64_t devices, const std::string& device, double memory_share = 1) {
  ClusterSpec cluster;
  cluster.nodes = {{.name = "n",
                    .count = nodes,
                    .devices = devices,
                    .device = device_preset(device),
                    .link = link_preset("pcie4")}};
  cluster.nodes[0].device.memory_bytes =
      static_cast<int64_t>(memory_share * static_cast<double>(cluster.nodes[0].device.memory_bytes));
  cluster.nodes[0].device.cost_per_hour = 2;
  cluster.network = link_preset("infiniband-100");
  return cluster;
}

}  // namespace cotune
