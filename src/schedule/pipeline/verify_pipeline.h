/// One proof for every pipeline schedule, whoever made it.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/pipeline/pipeline_schedule.h"

namespace cotune {

/// What a proven schedule takes, whatever the times turn out to be.
struct PipelineFacts {
  std::vector<int32_t>
      peak_in_flight;  ///< per rank: microbatches between forward and free, of those with a backward
  std::vector<int64_t> peak_kept_bytes;  ///< per rank: what these keep
  std::vector<int64_t> peak_bytes;       ///< per rank: with the buffers of posted receives
  int64_t message_count = 0;             ///< activations and errors
  int64_t message_bytes = 0;
  int64_t norm_message_count = 0;
  bool operator==(const PipelineFacts&) const = default;
};

/// Runs the lists without a model, under the strictest reading of the channel rule: a rank stands at a send
/// until its receive is posted. What is free of deadlock so is free of it with sends that complete later.
/// Throws InternalError naming rank, action and the first violation of:
///   content    every forward, backward (from the head down to the microbatch's lowest stage), free, message and
///              optimizer step once and whole, on its rank, to its peer, of its size; nothing else
///   channels   sends and receives of a channel in one order
///   deadlock   every rank comes to its end; else each waiting rank is named with what it waits for
///   use        nothing is used before it was computed, its receive posted or (an error on its rank) handed on, nor sent after its free
///   chains     forward in descending, backward in ascending index on every stage
///   gradients  of a job step go backward in ascending index on every stage with adapters of it
///   steps      an optimizer step comes after all backwards of its step on its stage and knows the whole norm;
///              the next step's first forward there comes after it
///   memory     peak_bytes of no rank above `limit_bytes` (per rank; empty: no limit)
PipelineFacts verify(const PipelineWork& work, const PipelineSchedule& schedule,
                     const std::vector<int64_t>& limit_bytes = {});

}  // namespace cotune
