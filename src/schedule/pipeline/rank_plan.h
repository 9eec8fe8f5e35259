/// Rounds of training on the ranks of a pipeline, as the engine takes them: what goes through together, who computes which
/// layers, and what every rank does.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "model/config/tensor_shard.h"
#include "schedule/operators.h"
#include "schedule/pipeline/clocks.h"
#include "schedule/pipeline/compute_graph.h"
#include "schedule/pipeline/simulate.h"
#include "schedule/step_plan.h"

namespace cotune {

/// Who computes what.
struct PipelineLayout {
  std::vector<StageShape> stages;   ///< embedding to head
  std::vector<int32_t> stage_rank;  ///< the rank of each
  bool shards_weights = false;      ///< frozen weights are spread over the replicas of this layout, where these are processes (weight_copies.h)
  int32_t rank_count() const;       ///< in the pipeline: one for each list of actions
  /// Ranks that divide the layers of every stage and run its actions side by side; messages go between equal places in them.
  int32_t tensor_parallel() const;
  bool is_sequence_parallel() const;  ///< those ranks do (sequence_parallel.h), on every stage
  int32_t worker_count() const { return rank_count() * tensor_parallel(); }
  /// Of a worker: its rank in the pipeline, whose actions it takes, and its part of the layers.
  int32_t place_of(int32_t worker) const { return worker / tensor_parallel(); }
  TensorShard shard_of(int32_t worker) const { return {worker % tensor_parallel(), tensor_parallel(), is_sequence_parallel()}; }
  /// The stage that holds a layer.
  int32_t stage_of(int64_t layer) const;
  bool operator==(const PipelineLayout&) const = default;
};

/// The whole model on rank 0.
PipelineLayout one_rank(const ModelConfig& config);

struct RankPlan {
  std::vector<StepPlan> rounds;             ///< in order; each job's steps ascend. Their own `actions` are not read
  PipelineWork work;                        ///< the rounds as the schedule has them (their clocks, if there are some), by the costs
  PipelineSchedule schedule;                ///< as it was proven: without recomputation
  PipelineSimulation predicted;             ///< of the schedule
  std::vector<PipelineClock> clocks;        ///< where microbatches are interleaved: what the schedule's microbatches are; else empty
  std::vector<std::vector<Action>> ranks;   ///< what the engine executes. Action::microbatch counts over the microbatches of all rounds, one
                                            ///< after another
  std::vector<int64_t> spare_bytes;         ///< of each rank in the pipeline: what it may keep beyond most_in_flight; empty: nothing
};

/// Seconds, and bytes kept, of a microbatch on a stage. plan: an element of the rounds that are planned, where it lies.
using StageCosts = std::function<StageCost(const StepPlan& plan, size_t microbatch, size_t stage)>;

/// The same microbatch's subgraphs.
using StageGraphsOf = std::function<StageGraphs(const StepPlan& plan, size_t microbatch, size_t stage)>;

struct RankPlanOptions {
  RankOrder order = RankOrder::automatic;
  PipelineCluster cluster;                ///< links that times are reckoned with
  MessageBytes bytes_per_token;           ///< of messages, of which ranks that divide tokens send their slices
  std::vector<double> optimizer_s;        ///< by job: seconds of its optimizer step on one stage; 0 of those beyond
  /// Microbatches that a rank may hold between forward and backward, in units of its dearest one; a longer chain has its own
  /// length. 0: no limit. Read by `automatic`, split, lorapp and muxtune.
  int32_t most_in_flight = 0;
  /// Bytes that each rank may keep beyond that, for half as many microbatches more; none where a round has chains. So ranks go on where
  /// microbatches of unlike sizes, or messages under way, would make them wait. Read by the orders that most_in_flight is read by.
  int64_t spare_bytes = 0;
  /// Where ranks divide layers, not tokens, and no round recomputes: `always` runs microbatches two by two in clocks (clocks.h), in
  /// the pairs as they are packed or of buckets (bucketed_clocks, share 1/2 and 3/4), whichever are predicted to take least time; `automatic` does
  /// so, or has each alone in its clock. `never` waits for every all-reduce.
  Interleave interleave = Interleave::never;
  /// Under `automatic`: the pairs of a plan that is followed (planned_clocks); empty: none is.
  std::vector<std::vector<int32_t>> jobs_of_buckets;
  StageGraphsOf graphs;                   ///< read unless interleave is never
  StreamRates rates;                      ///< of all-reduces beside computation
};

/// The rounds as the pipeline's schedules see them. Steps of a job that the rounds leave out are not counted: its steps are numbered
/// one after another, from its first one's number. bytes_per_token: as in RankPlanOptions.
PipelineWork work_of(const std::vector<StepPlan>& rounds, const PipelineLayout& layout, const StageCosts& costs,
                     const MessageBytes& bytes_per_token);

/// The same with the jobs' optimizer steps.
PipelineWork work_of(const std::vector<StepPlan>& rounds, const PipelineLayout& layout, const StageCosts& costs,
                     const RankPlanOptions& options);

/// What every rank does when it computes in this order: with messages, optimizer steps and frees (make_schedule), proven
/// (verify), and with recomputation written out layer by layer where a round's policy has it: a backward is then the head
/// alone, where the stage has it, and for each layer from the stage's last down to its lowest adapted one recompute(l, l + 1),
/// backward(l, l + 1). work: work_of the rounds.
RankPlan plan_in_order(std::vector<StepPlan> rounds, const PipelineLayout& layout, const PipelineWork& work,
                       const ComputeOrder& order, const PipelineCluster& cluster = {});

/// The same in the order that the options ask for; `automatic`, and `split` (which is about how rounds are packed), is continuous interleaved 1F1B
/// where ranks have several stages, which keeps less than 2P microbatches on P ranks.
RankPlan plan_ranks(std::vector<StepPlan> rounds, const PipelineLayout& layout, const StageCosts& costs,
                    const RankPlanOptions& options);

}  // namespace cotune
