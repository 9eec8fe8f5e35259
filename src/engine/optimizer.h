#pragma once

#include "engine/job_round.h"
#include "engine/unread_results.h"

namespace cotune {

/// Whether our CPU kernels step the job's parameters, and the host follows; elsewhere (a GPU, f64) the step is tensor
/// operations alone, whose outcome the host learns later.
bool steps_on_host(const Adapter& adapter);

/// One optimizer step of one job: the norm of its gradient, clipping by that norm alone, AdamW or SGD as torch.optim
/// has them, gradients zeroed, the adapter refreshed. Nothing is shared with other jobs. A loss or gradient that is not
/// finite leaves parameters and moments as they are. On the host it needs round.loss_sum and fills the round's
/// gradient_norm, stepped and failure; elsewhere it reads nothing and leaves these to `unread`.
void optimizer_step(JobRound& round, UnreadResults& unread);

/// Writes gradient_norm and how the step ended, from the round's loss_sum and these.
void conclude_step(JobRound& round, double gradient_norm, bool finite_parameters);

}  // namespace cotune
