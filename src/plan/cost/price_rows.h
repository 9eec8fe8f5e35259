/// The rows of one replica as work for its pipeline: packed under a sharing policy, every microbatch priced on every stage.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/cost/stage_cost.h"
#include "plan/cost/stage_memory.h"
#include "plan/cost/stage_prices.h"
#include "plan/cost/weight_sharding.h"
#include "plan/shapes/job_shape.h"
#include "plan/shapes/typical_step.h"
#include "schedule/pipeline/pipeline_cluster.h"
#include "schedule/pipeline/pipeline_work.h"

namespace cotune {

/// A replica and what it stands on.
struct ReplicaModel {
  ModelConfig model;
  std::vector<JobShape> jobs;  ///< of the plan; all their adapters are on every replica
  std::vector<StageShape> stages;  ///< runs of layers from the embedding to the head
  int64_t chunks = 1;  ///< of them on a rank: number k is on rank k mod rank_count() (interleaved 1F1B); sharded weights need 1
  StageMachine machine;
  PipelineCluster links;     ///< between ranks
  int64_t memory_limit = 0;  ///< bytes of one device that tensors may take
  WeightSharding sharding;   ///< of the frozen weights over like copies of the replica
  LinkSpec between_copies;   ///< that they are gathered over; not read for one copy

  size_t rank_count() const { return stages.size() / static_cast<size_t>(chunks); }
};

/// How its rows are cut into microbatches.
struct ReplicaPacking {
  Sharing sharing = Sharing::hybrid;
  Layout layout = Layout::ragged;
  int64_t chunk_size = 64;
  int64_t token_budget = 1024;  ///< at least an atom; a longer row is a chain
  std::vector<std::vector<int32_t>>
      hybrid_tasks;  ///< sharing hybrid: a partition of the jobs with rows; else not read
  std::vector<std::vector<int32_t>>
      buckets;       ///< sharing hybrid: hybrid tasks of one clock, by index; empty: each by itself
  int64_t least_microbatches = 1;  ///< sharing hybrid, several stages: above 1, what each task's step is cut into at least
};

/// Microbatches with their costs on every stage, as work for the pipeline.
struct PricedRows {
  std::vector<PipelineWork> works;  ///< one after the other: with sharing separate one per job, else one
  std::vector<std::vector<int32_t>> hybrid_tasks;  ///< jobs that share microbatches
  std::vector<std::vector<int32_t>> buckets;       ///< of these, by index
  /// Per bucket: seconds of all backwards over those of all forwards, on all stages. MuxTune takes it as 1 (§3.4.1; MX-15); nothing here does.
  std::vector<double> backward_ratio;
  std::vector<StageMemory>
      resident;  ///< per rank: weights and adapters, and the largest workspace of a microbatch
  std::vector<int64_t> largest_kept;  ///< per rank: bytes that the largest microbatch, or chain of them, keeps
  int64_t rows = 0, tokens = 0, processed_tokens = 0, microbatches = 0;
};

/// Packs the rows as plan_step does, with
///   separate   a work per job
///   temporal   every job a hybrid task of its own, by turns, a microbatch (or a chain's) a turn
///   batch_all  all jobs in one microbatch whatever its size; in a pipeline, which one microbatch would leave idle, the fewest
///              slices of it within the token budget, each with every n-th row of every job
///   hybrid     the hybrid tasks given, one after the other in the round, each packed to the token budget or, with
///              least_microbatches, to a smaller one (PackingPolicy::least_microbatches); in a bucket of several the n-th
///              microbatches of its tasks are one clock, priced by overlapped_seconds, and those that are left over
///              each by itself. With tensor parallelism, but of divided tokens, single tasks hide what they can as well
/// (each with its packed microbatches in their order; the jobs of a hybrid task begin their next step
/// together), and prices microbatches by stage_seconds and stage_memory; all tokens are taken as labelled.
/// machine.recompute and sharding are part of every cost.
/// Optimizer steps read and write parameters, gradients and moments once at the reached memory bandwidth; with tensor parallelism
/// the gradients of which every rank has a summand are added before (summand_count).
/// `prices`: of replica.model, jobs and machine, for more calls; nullptr: made for this one.
PricedRows price_rows(const ReplicaModel& replica, const std::vector<StepRow>& rows,
                      const ReplicaPacking& packing, StagePrices* prices = nullptr);

}  // namespace cotune
