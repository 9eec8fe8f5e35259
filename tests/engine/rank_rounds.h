/// Rounds of random jobs for tests of several ranks, and what one rank makes of them.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "engine/random_job.h"
#include "engine/rank_group.h"
#include "schedule/random_batches.h"

namespace cotune::testing {

/// Stages of about as many layers each, one a rank or `chunks` of them, each divided among `degree` ranks.
PipelineLayout even_layout(const ModelConfig& config, int32_t ranks, int32_t chunks = 1, int64_t degree = 1);

/// kernel_friendly_config with 8 heads and 4 kv heads with biases, a tied head, and a vocabulary that no degree divides.
ModelConfig eight_heads(int64_t layers, int64_t kv_heads = 4);

/// kernel_friendly_config with the head counts of SmolLM2-135M.
ModelConfig nine_heads(int64_t layers);

/// The parts of a random model that so many ranks divide its layers into.
std::vector<std::shared_ptr<const Backbone>> divided_parts(const ModelConfig& config, int64_t degree, at::ScalarType compute = at::kDouble);

/// Costs by tokens alone.
StageCost one_unit(const StepPlan& plan, size_t microbatch, size_t stage);

/// Every method; chains under a budget of 256, one of them of a job adapted in the upper layers alone; and a job adapted in the
/// lowest layer.
std::vector<RandomJob> every_method();

/// Jobs of random methods, modules and rows. Each list has the least and the most.
struct RandomJobs {
  std::pair<int64_t, int64_t> jobs, rows;
  int64_t longest = 30;       ///< tokens of a row, but now and then one of 400
  bool has_tiny_jobs = false;  ///< now and then of one row of two tokens or three
};
std::vector<RandomJob> random_jobs(Dice& dice, const RandomJobs& range);

/// A round of the lives, one step each.
struct Round {
  std::vector<JobLife*> present;
  std::vector<JobRound> rounds;
  StepPlan plan;
};
Round next_round(std::vector<std::unique_ptr<JobLife>>& lives, PackingPolicy policy, const ModelConfig& config);

using RunRound = std::function<void(Round&)>;

/// How a test watches the lives. Any may be empty.
struct LifeEvents {
  std::function<void(JobLife&, int32_t job)> begins;
  std::function<void(JobLife&, int32_t job, int64_t pass)> selected;  ///< a selection pass has ended
  std::function<void(JobLife&, int32_t job)> ends;                    ///< before values are read
};

/// The ranks have the adapters.
LifeEvents shared_with(RankGroup& ranks);

/// Losses and values of every adapter after all jobs' steps, one flat list.
std::vector<at::Tensor> train(const std::vector<RandomJob>& jobs, const Backbone& backbone, const PackingPolicy& policy,
                              const RunRound& run, const LifeEvents& events = {});
std::vector<at::Tensor> train_on_one(const std::vector<RandomJob>& jobs, const std::shared_ptr<const Backbone>& backbone,
                                     const PackingPolicy& policy);

double largest_difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

/// Steps of jobs that select nothing, planned round by round, to run at once.
struct Rounds {
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::list<Batch> batches;
  std::vector<StepPlan> plans;
  std::vector<JobRound> rounds;
};
Rounds rounds_of(const std::vector<RandomJob>& jobs, const ModelConfig& config, PackingPolicy policy, int64_t steps,
                 at::Device device = at::kCPU);

/// Jobs take turns, in microbatches of 256 tokens.
PackingPolicy small_microbatches();
/// The same, in chunks of 64 tokens.
PackingPolicy small_chunks();
RankPlan plan_round(const StepPlan& round, const PipelineLayout& layout, RankOrder order = RankOrder::automatic);

/// What operators take on one rank of those that divide the stage.
using OperatorTimes = std::function<OperatorTime(const StageShape& stage, const Operator& op, const MicrobatchCounts& counts)>;
/// Times that differ from one operator and microbatch to the next; all-reduces are dear.
OperatorTime uneven_times(const StageShape& stage, const Operator& op, const MicrobatchCounts& counts);
/// What is given is read by the result. rounds: the jobs of the plans that are asked for.
StageGraphsOf graphs_of(const ModelConfig& config, const PipelineLayout& layout, std::span<const JobRound> rounds, OperatorTimes times);
/// A round whose microbatches, where ranks divide layers, run two by two.
RankPlan plan_interleaved_round(const StepPlan& round, std::span<const JobRound> rounds, const ModelConfig& config, const PipelineLayout& layout,
                                RankOrder order = RankOrder::automatic);

std::vector<int64_t> collectives_by_rank(const RankTimes& times);

// What every group of ranks keeps, whether they are threads or processes. backbone: of the whole model, f64.

/// Loss, of the rows too, and first choices.
void expect_equal_evaluation(const JobRound& round, const JobRound& expected);

/// Losses and first choices of an evaluation of every method and of the base model are those of one rank. plan: of the round; where it is
/// empty, plan_round, of one replica.
using PlanRound = std::function<ReplicaPlans(const StepPlan& round)>;
void expect_evaluation_of_one_rank(RankGroup& ranks, const std::shared_ptr<const Backbone>& backbone, PlanRound plan = {});

/// Rounds that break off on rank `troubled`, after every 23rd of the first operators, have made each job's step on all ranks or on
/// none; what was not made goes through on its own.
void expect_steps_everywhere_or_nowhere(RankGroup& ranks, const std::shared_ptr<const Backbone>& backbone, int32_t troubled,
                                        int64_t most_operators);

}  // namespace cotune::testing
