/// The action lists of all ranks of a pipeline, made from an order of its computations.
#pragma once

#include <vector>

#include "schedule/action.h"
#include "schedule/pipeline/compute_graph.h"

namespace cotune {

struct PipelineSchedule {
  std::vector<std::vector<Action>> ranks;
  bool operator==(const PipelineSchedule&) const = default;
};

/// Adds messages, optimizer steps and frees to an order.
///
/// A send follows its forward or backward at once. Its receive is posted before the first computation of the
/// other rank that would still run, by the times of the cluster, when the message is ready: then no send
/// waits, if the times are right, and none waits for ever, whatever the times turn out to be. On a job's
/// lowest stage its optimizer step follows its last backward, on the others it comes just before its next
/// step's first forward. Where there is no next step, it waits for the norm's own message, in the first gap
/// after that arrives. A free follows the stage's last computation and sends, and hands on to the stage below on its own
/// rank the error (its output is that of the stage above at once). Throws InternalError: a cycle, more or less than the work.
PipelineSchedule make_schedule(const PipelineWork& work, const ComputeOrder& order,
                               const PipelineCluster& cluster = {});

/// The computations of a schedule, in order.
ComputeOrder compute_order(const PipelineSchedule& schedule);

}  // namespace cotune
