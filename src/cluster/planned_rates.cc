#include "cluster/planned_rates.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

#include "base/counted.h"
#include "base/error.h"

namespace cotune {

PlannedRates::PlannedRates(const InstanceSpec& instance, const std::vector<JobKind>& kinds)
    : instance_(instance), costs_(instance, kinds) {}

double PlannedRates::round_seconds(const JobMix& mix) {
  ++asked_;
  const auto [place, is_new] = known_.try_emplace(mix, 0);
  if (is_new) place->second = plan(mix);
  return place->second;
}

FusionProblem PlannedRates::problem_of(const JobMix& mix) const {
  const std::vector<int32_t> kinds = mix.kinds();
  FusionProblem problem{.microbatches = instance_.microbatches, .rounds = 2};
  for (const int32_t kind : kinds) problem.tokens.push_back(costs_.microbatch_tokens(kind));
  problem.cost = [this, kinds](std::span<const int32_t> jobs) {
    std::vector<int32_t> fused;
    for (const int32_t job : jobs) fused.push_back(kinds[static_cast<size_t>(job)]);
    return costs_.fused(fused);
  };
  const InstanceMemory& memory = costs_.memory();
  for (size_t s = 0; s < memory.limit_bytes.size(); ++s) {
    int64_t left = memory.limit_bytes[s] - costs_.weight_bytes()[s];  // logits are in the workspace of every microbatch
    for (const auto& [kind, count] : mix.counts()) left -= count * memory.kinds[static_cast<size_t>(kind)].resident_bytes[s];
    problem.memory_bytes.push_back(left);
  }
  if (instance_.pipeline_stages > 1) {
    problem.cluster.link = {instance_.between_stages.latency, instance_.between_stages.bandwidth};
  }
  return problem;
}

double PlannedRates::plan(const JobMix& mix) const {
  const FusionProblem problem = problem_of(mix);
  HybridTasks tasks;
  std::vector<int32_t> all(problem.tokens.size());
  std::iota(all.begin(), all.end(), 0);
  switch (instance_.sharing) {
    case Sharing::hybrid: {
      const Fusion fusion = fuse_jobs(problem);
      COTUNE_CHECK(!fusion.tasks.empty(), "{} jobs that were admitted do not fit: {}", mix.job_count(), fusion.time.constraint);
      return fusion.time.seconds;
    }
    case Sharing::batch_all:
      tasks = {all};
      break;
    case Sharing::separate:
    case Sharing::temporal:
      for (const int32_t job : all) tasks.push_back({job});
      break;
  }
  const FusionTime time = fusion_time(problem, tasks);
  COTUNE_CHECK(std::isfinite(time.seconds), "{} jobs that were admitted do not fit: {}", mix.job_count(), time.constraint);
  return time.seconds;
}

std::string PlannedRates::describe() const {
  const double remembered = asked_ > 0 ? 1 - static_cast<double>(planned()) / static_cast<double>(asked_) : 0;
  return fmt::format("the planner: {} asked for, {} planned, {:.1f}% remembered", counted(asked_, "mix", "mixes"), planned(), 100 * remembered);
}

}  // namespace cotune
