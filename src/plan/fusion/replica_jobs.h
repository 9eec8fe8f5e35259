/// The jobs of a replica as fusion problems: model, stages and machine behind the numbers.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/cost/stage_cost.h"
#include "plan/cost/stage_memory.h"
#include "plan/cost/weight_sharding.h"
#include "plan/fusion/fusion.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

struct ReplicaJobs {
  ModelConfig model;
  std::vector<JobShape> jobs;      ///< their AdapterShape::job is their place
  std::vector<StageShape> stages;  ///< even_stages, or partition_stages
  StageMachine machine;            ///< of every stage
  LinkSpec between_stages;         ///< not read for one stage
  int64_t memory_bytes = 0;        ///< that tensors of one rank may take; 0: no limit
  WeightSharding sharding;
  LinkSpec between_copies;         ///< of a set of weights; not read for one copy
};

/// Weights and adapters of all jobs per stage: what is there whatever is fused. Activations and workspace are 0.
std::vector<StageMemory> resident_memory(const ReplicaJobs& replica);

/// Each job's expected round cut into `microbatches` parts, rounded up: tokens, labelled tokens (all are taken to be),
/// causal pairs of whole rows, without pads (layout ragged). Costs are those of stage_seconds and stage_memory, from a
/// table of every job's share (FusedStageCosts), with the gathering of sharded weights; with tensor parallelism
/// clock_cost is overlapped_seconds; memory_bytes is what resident_memory leaves, and where it leaves nothing 0. One round;
/// optimizer steps are not counted.
FusionProblem fusion_problem(const ReplicaJobs& replica, int64_t microbatches);

/// 1, 2, 4, … microbatches, up to the count that leaves the mean job 64 tokens in one, and at most 16.
std::vector<FusionProblem> fusion_problems(const ReplicaJobs& replica);

}  // namespace cotune
