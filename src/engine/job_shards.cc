#include "engine/job_shards.h"

namespace cotune {

void JobShards::share(int32_t job, const Adapter& whole) {
  const auto found = shards_.find(job);
  if (found != shards_.end()) {
    copy_to_shard(whole, *found->second);
  } else {
    shards_[job] = make_adapter_shard(whole, shard_, held_);
  }
}

std::vector<JobRound> JobShards::rounds_of(std::span<const JobRound> rounds) const {
  std::vector<JobRound> own(rounds.begin(), rounds.end());
  for (JobRound& round : own) {
    if (round.adapter != nullptr) round.adapter = &at(round.job);
  }
  return own;
}

}  // namespace cotune
