/// Runs a pipeline schedule on a cluster, event by event, without a model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "schedule/pipeline/exchange_times.h"
#include "schedule/pipeline/pipeline_cluster.h"
#include "schedule/pipeline/pipeline_schedule.h"

namespace cotune {

/// When a forward, backward or optimizer step ran. `action`: index in its rank's list.
struct SimulatedSpan {
  size_t action = 0;
  double start_s = 0;
  double end_s = 0;
};
/// The same with seconds since begin_s.
std::vector<SimulatedSpan> since(double begin_s, std::vector<SimulatedSpan> spans);

/// When a message was under way. `action`: index of the send in its rank's list.
struct SimulatedTransfer {
  int32_t from = 0;
  int32_t to = 0;
  size_t action = 0;
  double start_s = 0;
  double end_s = 0;
};

/// Bytes in flight from this moment on.
struct MemorySample {
  double time_s = 0;
  int64_t bytes = 0;
};

struct SimulatedRank {
  std::vector<SimulatedSpan> spans;
  std::vector<MemorySample> memory;  ///< kept for backward, receive buffers, what waits to be sent
  double busy_s = 0;                 ///< in spans
  int64_t peak_bytes = 0;
  double exchange_wait_s = 0;        ///< of a replica: with nothing to do before an optimizer step whose sums were not there
  /// Of a replica: from when it had posted the gradients of a reduce_gradients, and was through with those before, to when it had the sums.
  std::vector<SimulatedSpan> exchanges;
};

struct PipelineSimulation {
  double makespan_s = 0;
  std::vector<SimulatedRank> ranks;
  std::vector<SimulatedTransfer> transfers;
  int64_t message_count = 0;  ///< activations and errors
  int64_t message_bytes = 0;
  int64_t norm_message_count = 0;

  /// Idle share of one rank, and of all, from 0 to the makespan.
  double bubble_ratio(size_t rank) const;
  double bubble_ratio() const;
  /// Idle share of all ranks between two moments (mLoRA's steady region).
  double idle_share(double from_s, double until_s) const;
};

/// A rank takes its actions in order. Forwards, backwards and optimizer steps run one at a time, for the
/// seconds of the work times what slows the rank; each waits for the message that it uses. A message leaves
/// when it is sent, its receive is posted, the link is free and those before it in its channel have left; it
/// takes the link for bytes / bytes_per_s and is there latency_s later. With overlap the sending rank goes on
/// at once; a message's bytes count on the sender until it is there, on the receiver from the post to the end
/// of what uses it. Throws InternalError on deadlock: verify schedules first.
PipelineSimulation simulate(const PipelineWork& work, const PipelineSchedule& schedule,
                            const PipelineCluster& cluster = {});

/// One of several replicas of the model, whose lists exchange gradients (with_exchanges).
struct ExchangingReplica {
  const PipelineWork* work = nullptr;
  const PipelineSchedule* schedule = nullptr;
  PipelineCluster cluster;
  std::vector<double> optimizer_s, reduce_s;  ///< by job, on one rank: its optimizer step; what comes before its gradients are posted
  int32_t first_rank = 0;                     ///< among the ranks of all replicas
  int32_t tensor_parallel = 1;                ///< ranks of each list, side by side
};

/// All of them at once. reduce_gradients takes reduce_s, which is in no span, and posts; an optimizer step waits until its ranks have
/// the sums (ExchangeTimes); optimizer steps of jobs that costs do not name wait for nothing. order: of the exchanges. In the replicas'
/// order.
std::vector<PipelineSimulation> simulate(std::span<const ExchangingReplica> replicas, const ExchangeCosts& costs,
                                         std::span<const JobStep> order);

}  // namespace cotune
