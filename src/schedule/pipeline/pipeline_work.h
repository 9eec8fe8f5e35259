/// What goes through a pipeline, as data: stages on ranks, jobs, microbatches and what each costs. Generators
/// order it, the verifier proves an order against it, the simulator runs it.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pipeline/message_bytes.h"
#include "schedule/step_plan.h"

namespace cotune {

/// One step of one job.
struct JobStep {
  int32_t job = 0;
  int64_t step = 0;
  auto operator<=>(const JobStep&) const = default;
};

/// A job as the pipeline sees it.
struct PipelineJob {
  int32_t job = 0;
  int32_t lowest_stage =
      0;  ///< the lowest stage with an adapter of it: no error goes below, its norm is whole there
  double optimizer_s = 0;  ///< seconds of its optimizer step on one stage
  bool operator==(const PipelineJob&) const = default;
};

/// What one microbatch costs on one stage.
struct StageCost {
  double forward_s = 1;
  double backward_s = 2;   ///< recomputation included; not read below the microbatch's lowest stage
  int64_t kept_bytes = 1;  ///< from its forward to its free
  bool operator==(const StageCost&) const = default;
};

struct PipelineMicrobatch {
  int32_t hybrid_task = 0;      ///< the hybrid task, or the bucket of hybrid tasks that run in one clock
  int64_t round = 0;            ///< which step of its hybrid task
  std::vector<JobStep> jobs;    ///< whose rows it has, ascending; at least one
  int32_t chain = -1;           ///< adjacent microbatches of one number >= 0 are a chain
  MessageBytes message_bytes;   ///< between two stages
  std::vector<StageCost> cost;  ///< one per stage
  bool operator==(const PipelineMicrobatch&) const = default;
};

/// Microbatches stand in the order of their backward: on every stage the microbatches of a job step go
/// backward in ascending index, so that gradients are added in one order whatever the schedule. The
/// microbatches of a chain go forward in descending index, all others as the schedule likes. A job's steps
/// ascend with the index.
///
/// Stages are 0 … stage_count()-1, embedding to head. A rank may hold several (interleaved schedules);
/// between stages of one rank there is no message. The squared gradient norm of a job step gathers on its
/// error messages down to the job's lowest stage and comes back up with the first forward message of its next
/// step; where the work holds no next step, a message of norm_message_bytes brings it. An optimizer step on a
/// stage needs the whole norm; the job's next forward on that stage needs the optimizer step. There is no
/// other barrier.
struct PipelineWork {
  int32_t rank_count = 1;
  std::vector<int32_t> stage_rank;  ///< the rank of each stage
  std::vector<PipelineJob> jobs;
  std::vector<PipelineMicrobatch> microbatches;
  int32_t stage_count() const { return static_cast<int32_t>(stage_rank.size()); }
  bool operator==(const PipelineWork&) const = default;
};

/// Sum of squares and a flag.
inline constexpr int64_t norm_message_bytes = 16;

/// Throws InternalError naming the first thing that is not as PipelineWork says: no stage or no rank for one,
/// a cost missing, negative or not finite, unknown or unsorted jobs, a chain that is not adjacent, shares no
/// job or crosses rounds, steps of a job that skip or go back.
void check(const PipelineWork& work);

/// Stages 0 … count-1 on ranks 0 … count-1.
std::vector<int32_t> one_stage_per_rank(int32_t rank_count);
/// Stage k on rank k mod rank_count: `chunks` stages a rank (interleaved 1F1B).
std::vector<int32_t> interleaved_stages(int32_t rank_count, int32_t chunks);

/// Like jobs, each a hybrid task by itself: `rounds` rounds of `microbatches` microbatches per job, all of
/// one cost. Microbatches stand round by round, in a round job by job.
PipelineWork uniform_work(int32_t rank_count, int32_t job_count, int32_t microbatches, int32_t rounds,
                          const StageCost& cost = {}, const MessageBytes& message_bytes = {});

/// The microbatches of a step plan, its chains and jobs. `cost`: of every microbatch on every stage,
/// microbatch by microbatch. `lowest_stage`: one per batch of the plan. bytes_per_token: of messages. ranks_with_slices: of a stage; where
/// they divide the tokens each sends its slice, and the message is the largest one.
/// Jobs that share a microbatch, directly or through others, are one hybrid task; it is numbered by its first
/// batch.
PipelineWork work_of(const StepPlan& plan, std::vector<int32_t> stage_rank,
                     const std::vector<StageCost>& cost, const std::vector<int32_t>& lowest_stage,
                     const MessageBytes& bytes_per_token, int64_t ranks_with_slices = 1);

/// A run of microbatches that schedules treat as one: a chain, or a single microbatch. Forward last to first,
/// backward first to last.
struct PipelineUnit {
  int32_t first = 0;
  int32_t count = 1;
  bool operator==(const PipelineUnit&) const = default;
};
std::vector<PipelineUnit> units_of(const PipelineWork& work);

/// The lowest stage with an adapter of any of its jobs.
int32_t lowest_stage(const PipelineWork& work, const PipelineMicrobatch& microbatch);
const PipelineJob& job_of(const PipelineWork& work, int32_t job);

}  // namespace cotune
