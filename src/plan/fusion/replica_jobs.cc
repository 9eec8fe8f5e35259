#include "plan/fusion/replica_jobs.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "base/error.h"
#include "plan/cost/fused_stage_costs.h"
#include "plan/cost/overlapped_stage.h"
#include "plan/cost/stage_prices.h"
#include "schedule/sequence_parallel.h"

namespace cotune {
namespace {

constexpr int64_t most_microbatches = 16;  // of a hybrid task
constexpr double least_tokens = 64;        // of the mean job in each

/// One job's part of a microbatch.
struct JobPart {
  int64_t tokens = 0;
  int64_t rows = 0;  ///< whole or in part
  double pairs = 0;  ///< of queries and keys
  int64_t lowest_layer = 0;
};

JobPart part_of(const JobShape& job, int64_t microbatches) {
  const auto count = static_cast<double>(microbatches);
  double pairs = 0;
  for (const auto& [length, weight] : job.lengths.weights) {
    pairs += weight * static_cast<double>(length) * static_cast<double>(length + 1) / 2;
  }
  const double rows = static_cast<double>(job.batch_size) / count;
  int64_t lowest = std::numeric_limits<int64_t>::max();
  for (const AdapterShape& adapter : job.adapters) lowest = std::min(lowest, adapter.layer);
  return {.tokens = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(rows * job.lengths.mean() - 1e-9))),
          .rows = static_cast<int64_t>(std::ceil(rows - 1e-9)),
          .pairs = rows * pairs / job.lengths.total(),
          .lowest_layer = lowest};
}

/// What the counts of microbatches share.
struct PricedJobs {
  explicit PricedJobs(const ReplicaJobs& given) : replica(given), prices(replica.model, replica.jobs, replica.machine) {}

  ReplicaJobs replica;
  StagePrices prices;
};

struct ReplicaWorkload {
  std::shared_ptr<PricedJobs> shared;
  const ReplicaJobs& replica;
  std::vector<JobPart> parts;
  std::vector<double> gathering_s;  ///< of a pass, by stage
  std::unique_ptr<const FusedStageCosts> table;  ///< none where tokens are divided, whose collectives depend on who is together
};

/// A hybrid task's microbatch.
struct TaskCounts {
  MicrobatchCounts counts;
  std::vector<int32_t> jobs;  ///< ascending
  int64_t lowest_layer = 0;
};

TaskCounts count_task(const ReplicaWorkload& workload, std::span<const int32_t> jobs) {
  const ReplicaJobs& replica = workload.replica;
  TaskCounts task{.counts = {}, .jobs = {jobs.begin(), jobs.end()}, .lowest_layer = replica.model.layer_count};
  MicrobatchCounts& counts = task.counts;
  counts.job_tokens.assign(replica.jobs.size(), 0);
  counts.job_atoms.assign(replica.jobs.size(), 0);
  double pairs = 0;
  std::sort(task.jobs.begin(), task.jobs.end());
  for (const int32_t job : task.jobs) {
    const auto j = static_cast<size_t>(job);
    const JobPart& part = workload.parts[j];
    counts.job_tokens[j] = part.tokens;
    counts.job_atoms[j] = (part.tokens + atom_tokens - 1) / atom_tokens;
    counts.tokens += part.tokens;
    counts.row_parts += part.rows;
    pairs += part.pairs;
    task.lowest_layer = std::min(task.lowest_layer, part.lowest_layer);
  }
  counts.labelled = counts.tokens;
  counts.attention_pairs = static_cast<int64_t>(pairs);
  return task;
}

/// As FusedStageCosts has it.
FusedStageCosts::Costs divided_cost(const ReplicaWorkload& workload, const TaskCounts& task) {
  StagePrices& prices = workload.shared->prices;
  const size_t jobs = prices.jobs_number(task.jobs);
  FusedStageCosts::Costs costs;
  for (const StageShape& stage : workload.replica.stages) {
    const PricedStage& priced = prices.at(stage, jobs);
    const StageSeconds seconds = priced.seconds(task.counts);
    costs.stages.push_back({seconds.forward, seconds.backward, priced.kept_bytes(task.counts)});
    costs.layer_bytes.push_back(priced.layer_bytes(task.counts));
  }
  return costs;
}

FusedCost cost_of(const ReplicaWorkload& workload, std::span<const int32_t> jobs) {
  const ReplicaJobs& replica = workload.replica;
  const TaskCounts task = count_task(workload, jobs);
  const MicrobatchCounts& counts = task.counts;
  FusedStageCosts::Costs costs = workload.table ? workload.table->cost(task.jobs, counts) : divided_cost(workload, task);
  FusedCost cost{
      .stages = std::move(costs.stages),
      .message_bytes = largest_slice(counts.tokens, replica.stages.front()) * token_bytes(replica.model.hidden_size, replica.machine.element_size()),
      .lowest_stage = static_cast<int32_t>(replica.stages.size()) - 1};
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const StageShape& stage = replica.stages[s];
    if (task.lowest_layer < stage.last_layer) cost.lowest_stage = std::min(cost.lowest_stage, static_cast<int32_t>(s));
    const StageSeconds gathered =
        with_gathered_weights({cost.stages[s].forward_s, cost.stages[s].backward_s}, workload.gathering_s[s], replica.sharding);
    cost.stages[s].forward_s = gathered.forward;
    cost.stages[s].backward_s = gathered.backward;
    cost.workspace_bytes.push_back(
        stage_workspace(replica.model, stage, replica.machine.element_size()).bytes(counts) + costs.layer_bytes[s]);
  }
  return cost;
}

/// Of hybrid tasks in one clock: bytes are added up, for all of them are under way at once, and seconds are those of their
/// interleaved subgraphs.
FusedCost clock_cost_of(const ReplicaWorkload& workload, std::span<const std::vector<int32_t>> tasks) {
  const ReplicaJobs& replica = workload.replica;
  std::vector<TaskCounts> counted;
  for (const std::vector<int32_t>& jobs : tasks) counted.push_back(count_task(workload, jobs));
  StagePrices& prices = workload.shared->prices;
  FusedCost sum;
  std::vector<ClockMicrobatch> clock;
  for (size_t t = 0; t < tasks.size(); ++t) {
    FusedCost cost = cost_of(workload, tasks[t]);
    clock.push_back({prices.jobs_number(counted[t].jobs), &counted[t].counts, cost.lowest_stage});
    if (sum.stages.empty()) {
      sum = {.stages = std::vector<StageCost>(cost.stages.size(), StageCost{0, 0, 0}),
             .workspace_bytes = std::vector<int64_t>(cost.stages.size(), 0),
             .lowest_stage = cost.lowest_stage};
    }
    for (size_t s = 0; s < cost.stages.size(); ++s) {
      if (static_cast<size_t>(cost.lowest_stage) <= s) sum.stages[s].kept_bytes += cost.stages[s].kept_bytes;
      sum.workspace_bytes[s] += cost.workspace_bytes[s];
    }
    sum.message_bytes += cost.message_bytes;
    sum.lowest_stage = std::min(sum.lowest_stage, cost.lowest_stage);
    sum.optimizer_s += cost.optimizer_s;
  }
  for (size_t s = 0; s < replica.stages.size(); ++s) {
    const StageSeconds seconds =
        with_gathered_weights(overlapped_seconds(prices, replica.stages[s], s, clock), workload.gathering_s[s], replica.sharding);
    sum.stages[s].forward_s = seconds.forward;
    sum.stages[s].backward_s = seconds.backward;
  }
  return sum;
}

}  // namespace

std::vector<StageMemory> resident_memory(const ReplicaJobs& replica) {
  std::vector<StageMemory> memory;
  for (const StageShape& stage : replica.stages) {
    StageMemory& sum = memory.emplace_back(with_sharded_weights({.weights = frozen_bytes(replica.model, stage, replica.machine)},
                                                                replica.model, stage, replica.sharding, replica.machine));
    for (const JobShape& job : replica.jobs) sum.adapters += adapter_bytes(replica.model, stage, job.adapters, job.moment_count);
  }
  return memory;
}

namespace {

FusionProblem fusion_problem(const std::shared_ptr<PricedJobs>& shared, int64_t microbatches) {
  const ReplicaJobs& replica = shared->replica;
  COTUNE_CHECK(!replica.jobs.empty() && !replica.stages.empty(), "{} jobs on {} stages", replica.jobs.size(),
               replica.stages.size());
  auto workload = std::make_shared<ReplicaWorkload>(ReplicaWorkload{shared, replica, {}, {}, nullptr});
  FusionProblem problem{.microbatches = microbatches};
  for (const JobShape& job : replica.jobs) {
    workload->parts.push_back(part_of(job, microbatches));
    problem.tokens.push_back(workload->parts.back().tokens);
  }
  for (const StageShape& stage : replica.stages) {
    workload->gathering_s.push_back(
        gathering_seconds(replica.model, stage, replica.sharding, replica.machine.element_size(), replica.between_copies));
  }
  std::vector<std::vector<AdapterShape>> adapters;
  for (const JobShape& job : replica.jobs) adapters.push_back(job.adapters);
  if (!replica.stages.front().is_sequence_parallel) {
    workload->table = std::make_unique<const FusedStageCosts>(replica.model, replica.stages, replica.machine, std::move(adapters), problem.tokens);
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
  if (has_clocks(replica.stages.front())) {
    problem.clock_cost = [workload](std::span<const std::vector<int32_t>> tasks) { return clock_cost_of(*workload, tasks); };
  }
  return problem;
}

}  // namespace

FusionProblem fusion_problem(const ReplicaJobs& replica, int64_t microbatches) {
  return fusion_problem(std::make_shared<PricedJobs>(replica), microbatches);
}

std::vector<FusionProblem> fusion_problems(const ReplicaJobs& replica) {
  double tokens = 0;
  for (const JobShape& job : replica.jobs) tokens += static_cast<double>(job.batch_size) * job.lengths.mean();
  tokens /= static_cast<double>(replica.jobs.size());
  std::vector<FusionProblem> problems;
  const auto shared = std::make_shared<PricedJobs>(replica);
  for (int64_t count = 1; count <= most_microbatches; count *= 2) {
    if (count > 1 && tokens / static_cast<double>(count) < least_tokens) break;
    problems.push_back(fusion_problem(shared, count));
  }
  return problems;
}

}  // namespace cotune
