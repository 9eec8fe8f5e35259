/// What the ranks of a run know at its end, each for itself, and what all know then.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "engine/interpreter.h"

namespace cotune {

/// The layers of the stages of one of layout.worker_count() ranks.
std::vector<LayerRange> layers_of(const PipelineLayout& layout, int32_t rank);
/// The same of a rank over all replicas.
std::vector<LayerRange> layers_of(std::span<const PipelineLayout> layouts, int32_t rank);

/// Steps that some rank has made on some of its stages, with their whole records (optimizer.h).
using MadeSteps = std::map<JobStep, at::Tensor>;

/// Of one rank, after a run that broke off.
MadeSteps made_steps(const Interpreter& interpreter);

/// Makes what this rank lacks of steps that others have made. rounds: the rank's own.
void complete_steps(Interpreter& interpreter, const MadeSteps& made, std::span<JobRound> rounds);

/// After a run that broke off: gradients of jobs that have not stepped become zero.
void clear_gradients(std::span<JobRound> rounds);
void clear_gradients(Adapter& adapter);

}  // namespace cotune
