#include "plan/replica_jobs.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "base/error.h"

namespace cotune {
namespace {

/// One job's part of a microbatch.
struct JobPart {
  int64_t tokens = 0;
  double pairs = 0;  ///< of queries and keys
};

JobPart part_of(const JobShape& job, int64_t microbatches) {
  const auto count = static_cast<double>(microbatches);
  double pairs = 0;
  for (const auto& [length, weight] : job.lengths.weights) {
    pairs += weight * static_cast<double>(length) * static_cast<double>(length + 1) / 2;
  }
  const double rows = static_cast<double>(job.batch_size) / count;
  return {.tokens = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(rows * job.lengths.mean() - 1e-9))),
          .pairs = rows * pairs / job.lengths.total()};
}

struct Workload {
  ReplicaJobs replica;
  std::vector<JobPart> parts;
};

FusedCost cost_of(const Workload& workload, std::span<const int32_t> jobs) {
  const ReplicaJobs& replica = workload.replica;
  MicrobatchCounts counts;
  counts.job_tokens.assign(replica.jobs.size(), 0);
  std::vector<AdapterShape> adapters;
  double pairs = 0;
  std::vector<int32_t> ascending(jobs.begin(), jobs.end());
  std::sort(ascending.begin(), ascending.end());
  for (const int32_t job : ascending) {
    const auto j = static_cast<size_t>(job);
    counts.job_tokens[j] = workload.parts[j].tokens;
    counts.tokens += workload.parts[j].tokens;
    pairs += workload.parts[j].pairs;
    adapters.insert(adapters.end(), replica.jobs[j].adapters.begin(), replica.jobs[j].adapters.end());
  }
  counts.labelled = counts.tokens;
  counts.attention_pairs = static_cast<int64_t>(pairs);
  FusedCost cost{.message_bytes = counts.tokens * replica.model.hidden_size * replica.machine.element_size(),
                 .lowest_stage = static_cast<int32_t>(replica.stages.size()) - 1};
  int64_t lowest_layer = replica.model.layer_count;
  for (const AdapterShape& adapter : adapters) lowest_layer = std::min(lowest_layer, adapter.layer);
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const StageShape& stage = replica.stages[s];
    if (lowest_layer < stage.last_layer) cost.lowest_stage = std::min(cost.lowest_stage, static_cast<int32_t>(s));
    const StageSeconds seconds = stage_seconds(replica.model, stage, adapters, counts, replica.machine);
    const StageMemory memory =
        stage_memory(replica.model, stage, adapters, 0, counts, 1, replica.machine.element_size());
    cost.stages.push_back({seconds.forward, seconds.backward, memory.activations});
    cost.workspace_bytes.push_back(memory.workspace);
  }
  return cost;
}

}  // namespace

std::vector<StageMemory> resident_memory(const ReplicaJobs& replica) {
  std::vector<StageMemory> memory;
  for (const StageShape& stage : replica.stages) {
    StageMemory& sum = memory.emplace_back();
    for (const JobShape& job : replica.jobs) {
      const StageMemory one =
          stage_memory(replica.model, stage, job.adapters, job.moment_count, {}, 0, replica.machine.element_size());
      sum.weights = one.weights;
      sum.adapters += one.adapters;
    }
  }
  return memory;
}

FusionProblem fusion_problem(const ReplicaJobs& replica, int64_t microbatches) {
  COTUNE_CHECK(!replica.jobs.empty() && !replica.stages.empty(), "{} jobs on {} stages", replica.jobs.size(),
               replica.stages.size());
  auto workload = std::make_shared<Workload>(Workload{.replica = replica});
  FusionProblem problem{.microbatches = microbatches};
  for (const JobShape& job : replica.jobs) {
    workload->parts.push_back(part_of(job, microbatches));
    problem.tokens.push_back(workload->parts.back().tokens);
  }
  if (replica.memory_bytes > 0) {
    for (const StageMemory& resident : resident_memory(replica)) {
      problem.memory_bytes.push_back(std::max<int64_t>(0, replica.memory_bytes - resident.total()));
    }
  }
  if (replica.stages.size() > 1) {
    problem.cluster.link = {.latency_s = replica.between_stages.latency, .bytes_per_s = replica.between_stages.bandwidth};
  }
  problem.cost = [workload](std::span<const int32_t> jobs) { return cost_of(*workload, jobs); };
  return problem;
}

std::vector<FusionProblem> fusion_problems(const ReplicaJobs& replica, int64_t most, int64_t least_tokens) {
  double tokens = 0;
  for (const JobShape& job : replica.jobs) tokens += static_cast<double>(job.batch_size) * job.lengths.mean();
  tokens /= static_cast<double>(replica.jobs.size());
  std::vector<FusionProblem> problems;
  for (int64_t count = 1; count <= most; count *= 2) {
    if (count > 1 && tokens / static_cast<double>(count) < static_cast<double>(least_tokens)) break;
    problems.push_back(fusion_problem(replica, count));
  }
  return problems;
}

}  // namespace cotune
