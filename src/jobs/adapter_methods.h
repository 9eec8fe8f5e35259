/// What a PEFT method is like, for those who need to know that and not how it computes.
#pragma once

#include <cstdint>
#include <string>

#include "jobs/job.h"

namespace cotune {

/// Whether a job of this method looks at the gradients of its first batches, to choose what it trains, before
/// it steps.
bool selects_entries(AdapterMethod method);

/// Entries that diff pruning keeps of a weight with so many values: ⌈density · values⌉, at least one.
int64_t kept_entries(double density, int64_t weight_values);

/// Options beside rank, alpha and targets that decide what a trained adapter's tensors mean: a job cannot go
/// on with an adapter that was made under another. "" where they agree; else what differs, as `its use_rslora
/// is true, not false`.
std::string different_meaning(const AdapterSpec& adapter, const AdapterSpec& job);

}  // namespace cotune
