/// What the ranks of a run know at its end, each for itself, and what all know then.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "engine/interpreter.h"

namespace cotune {

/// The layers of the stages of one of layout.worker_count() ranks.
std::vector<LayerRange> layers_of(const PipelineLayout& layout, int32_t rank);

/// Steps that some rank has made on some of its stages, with their whole records (optimizer.h).
using MadeSteps = std::map<JobStep, at::Tensor>;

/// Of one rank, after a run that broke off.
MadeSteps made_steps(const Interpreter& interpreter);

/// Makes what this rank lacks of steps that others have made. rounds: the rank's own.
void complete_steps(Interpreter& interpreter, const MadeSteps& made, std::span<JobRound> rounds);

/// After a run that broke off: gradients of jobs that have not stepped become zero.
void clear_gradients(std::span<JobRound> rounds);
void clear_gradients(Adapter& adapter);

/// What is known of every round. by_rank: each rank's rounds, in one order. top: the rank of the uppermost stage, which makes
/// every job's steps and has the head: it knows the loss and the norm; any rank may know of a failure.
std::vector<JobRound> merged_rounds(size_t top, std::span<const std::vector<JobRound>> by_rank);

/// What a replica knows of a round without an optimizer step, and which rows of the batch it had.
struct ReplicaResult {
  const JobRound* round = nullptr;
  std::span<const int32_t> rows;
};
/// Writes the sum of the replicas' losses, in their order, and every row's first choices.
void add_replicas(std::span<const ReplicaResult> replicas, size_t row_count, JobRound& result);

}  // namespace cotune
