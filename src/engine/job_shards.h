#pragma once

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "adapter/adapter_shard.h"
#include "engine/job_round.h"

namespace cotune {

/// The shards of jobs' adapters with which one rank of a tensor-parallel group computes, where the whole
/// adapters are in the same process.
class JobShards {
 public:
  /// held: AdapterSetup::held.
  explicit JobShards(const TensorShard& shard, std::vector<LayerRange> held = {})
      : shard_(shard), held_(std::move(held)) {}

  /// The job's shard becomes its part of the adapter as it is now. Throws MemoryLimitExceeded.
  void share(int32_t job, const Adapter& whole);
  void forget(int32_t job) { shards_.erase(job); }
  /// Values and moments, into the whole adapter, which is not refreshed.
  void gather(int32_t job, Adapter& whole) const { copy_from_shard(at(job), whole); }

  Adapter& at(int32_t job) const { return *shards_.at(job); }
  /// The rounds with the shards in the place of the whole adapters.
  std::vector<JobRound> rounds_of(std::span<const JobRound> rounds) const;

 private:
  TensorShard shard_;
  std::vector<LayerRange> held_;
  std::map<int32_t, std::unique_ptr<Adapter>> shards_;
};

}  // namespace cotune
