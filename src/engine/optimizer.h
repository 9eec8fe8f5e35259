#pragma once

#include "engine/job_round.h"

namespace cotune {

/// One optimizer step of one job: the norm of its gradient, clipping by that norm alone, AdamW or SGD as torch.optim has
/// them, gradients zeroed, the adapter refreshed. Nothing is shared with other jobs. Fills the round's gradient_norm,
/// stepped and failure.
void optimizer_step(JobRound& round);

}  // namespace cotune
