/// Microbatches that go through the stages of a pipeline side by side: where ranks divide layers, one computes while the all-reduce of
/// another is under way (MuxTune §3.4.2). To the pipeline such a clock is one microbatch; what its stages launch, in which order, is data
/// that the engine executes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "schedule/pipeline/pipeline_schedule.h"
#include "schedule/stage/launch_order.h"

namespace cotune {

/// What two directions of a clock launch on a stage. Launch::task is the place of a microbatch in the clock, Launch::subgraph counts in
/// subgraphs_of its operators in this direction. A microbatch without a backward on the stage launches none there.
struct StageLaunches {
  std::vector<Launch> forward, backward;
  bool operator==(const StageLaunches&) const = default;
};

struct PipelineClock {
  std::vector<int32_t> microbatches;  ///< of the work, ascending
  std::vector<StageLaunches> stages;
  bool operator==(const PipelineClock&) const = default;
};

/// The subgraphs of a microbatch on a stage, with their times. backward is empty below its lowest stage.
struct StageGraphs {
  SubgraphDag forward, backward;
};
using MicrobatchGraphs = std::function<StageGraphs(size_t microbatch, size_t stage)>;

/// At most so many microbatches are in a clock: with two, whatever one communicates the other can hide.
inline constexpr int32_t most_in_a_clock = 2;

/// Clocks of at most `most` microbatches, without launches, in the order of their first one. The first microbatch that is left takes the
/// next one of the same round that shares no job with it, or else the next one, such that every job's microbatches stay in their
/// order. Microbatches of chains stay alone.
std::vector<PipelineClock> clocks_of(const PipelineWork& work, int32_t most = most_in_a_clock);

/// Clocks, without launches, by MuxTune's buckets (§3.4, Eq. 7): a round of N hybrid tasks has them in ⌈share·N⌉ buckets of two at most,
/// 1/2 <= share <= 1, balanced (balanced_pairs) by what a microbatch of each takes on the first stage, forward and backward, in the mean. The k-th
/// microbatches of a bucket's tasks are a clock. A task with a chain stays alone. Tasks share no jobs (work_of).
std::vector<PipelineClock> bucketed_clocks(const PipelineWork& work, double share);

/// The same in buckets that were planned before. jobs_of_buckets: of each the jobs of its hybrid tasks. Of a bucket's tasks in a round two at
/// most run in one clock, balanced where there are more; a task whose first job is in no bucket is alone.
std::vector<PipelineClock> planned_clocks(const PipelineWork& work, const std::vector<std::vector<int32_t>>& jobs_of_buckets);

/// What the clock's tasks launch in which order whatever their times: where two of them share a job, the later one's first subgraph
/// (with the head, whose losses are added up) follows the earlier one's, and so does each of its adapter gradients.
std::vector<LaunchEdge> launch_edges(const PipelineWork& work, const PipelineClock& clock, std::span<const SubgraphDag> backward);

/// Fills in what every stage launches (choose_launch_order), and returns the work whose microbatches are the clocks: with the makespans
/// as their costs, the bytes of all, and the jobs of all. Single microbatches hide all-reduces behind their own adapter gradients.
PipelineWork launch_clocks(const PipelineWork& work, std::vector<PipelineClock>& clocks, const MicrobatchGraphs& graphs,
                           const StreamRates& rates = {});

/// The lists of a schedule of clocks as the engine takes them: a forward or backward is one action with its clock's number; messages and
/// frees are those of each microbatch, one after the other.
std::vector<std::vector<Action>> actions_of_microbatches(const PipelineSchedule& schedule, const PipelineWork& work,
                                                         std::span<const PipelineClock> clocks);

/// Proves what the engine relies on; throws InternalError naming the first violation: every microbatch is in one clock; those of one
/// clock are of one round, and none of a chain; every job's microbatches are in clocks that ascend; every stage launches each subgraph
/// once, those of a microbatch in an order of their own dependencies, and what launch_edges say in its order.
void verify(const PipelineWork& work, std::span<const PipelineClock> clocks, const MicrobatchGraphs& graphs);

}  // namespace cotune
