#pragma once

#include "engine/job_round.h"
#include "engine/unread_results.h"

namespace cotune {

/// Whether our CPU kernels step the job's parameters, and the host follows; elsewhere (a GPU, f64) the step is tensor
/// operations alone, whose outcome the host learns later.
bool steps_on_host(const Adapter& adapter);

/// What the stages of a pipeline tell each other of a job's step, one summand each: Σ g² over the gradients of these layers (of a
/// tensor-parallel group's shard: over those that no rank before it counts), and the sum of the losses, where the stage has the
/// head and `has_head` says so. f64 [2], on the adapter's device. On the host the losses are those of round.loss_sum, elsewhere the
/// ones that are unread.
at::Tensor step_record(const JobRound& round, LayerRange layers, bool has_head, const UnreadResults& unread);

/// One optimizer step of one job on these layers: clipping by the whole gradient's norm alone, AdamW or SGD as torch.optim
/// has them, gradients zeroed, the adapter refreshed. record: the sum of all stages' records. Nothing is shared with other
/// jobs. A loss or gradient that is not finite leaves parameters and moments as they are. On the host it fills the round's
/// loss_sum, gradient_norm, stepped and failure; elsewhere it reads nothing and leaves these to `unread`.
void optimizer_step(JobRound& round, LayerRange layers, const at::Tensor& record, UnreadResults& unread);

/// Writes gradient_norm and how the step ended, from the round's loss_sum and these.
void conclude_step(JobRound& round, double gradient_norm, bool finite_parameters);

}  // namespace cotune
