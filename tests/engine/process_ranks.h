/// Ranks with weights, adapters and memory of their own, as processes have them; here each is a thread, and shares nothing.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/compute_device.h"
#include "engine/rank_leader.h"
#include "engine/rank_rounds.h"

namespace cotune::testing {

/// Groups of threads that are made when the first of their ranks asks. On a device that has groups, those of rounds are of the device.
class ThreadGroups {
 public:
  ThreadGroups(int32_t size, const ComputeDevice& device) : size_(size), device_(device), asked_(static_cast<size_t>(size), 0) {}
  RankLinks links(int32_t rank);
  std::atomic<int32_t> refused = -1;  ///< the rank that gets no further group

 private:
  int32_t size_;
  const ComputeDevice device_;
  std::mutex mutex_;
  std::vector<size_t> asked_;  ///< how often, by rank
  std::map<std::pair<size_t, std::vector<int32_t>>, std::vector<std::unique_ptr<Communicator>>> groups_;
};

/// What random_backbone gives, as far as a rank needs it. layouts: of the replicas.
std::shared_ptr<Backbone> backbone_of_rank(const ModelConfig& config, std::span<const PipelineLayout> layouts, int32_t rank,
                                           at::ScalarType compute = at::kDouble, at::Device device = at::kCPU);

/// A leader in this thread, and its followers.
class Processes {
 public:
  /// before_work: of the followers.
  Processes(const ModelConfig& config, const PipelineLayout& layout, std::function<void(int32_t rank)> before_work = {},
            at::ScalarType compute = at::kDouble)
      : Processes(config, std::vector{layout}, std::move(before_work), compute) {}
  /// Of replicas with these layouts.
  Processes(const ModelConfig& config, const std::vector<PipelineLayout>& layouts, std::function<void(int32_t rank)> before_work = {},
            at::ScalarType compute = at::kDouble, const ComputeDevice& device = {});
  ~Processes();

  RankLeader& leader() { return *leader_; }
  LifeEvents events();
  /// From now on this rank gets no group.
  void refuse_groups_of(int32_t rank) { groups_.refused = rank; }
  /// Why followers ended, by rank; "" where they were told to.
  const std::vector<std::string>& end();

 private:
  int threads_before_;
  ThreadGroups groups_;
  std::vector<std::string> ended_;
  std::vector<std::thread> threads_;
  std::unique_ptr<RankLeader> leader_;
};

}  // namespace cotune::testing
