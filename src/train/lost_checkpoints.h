#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/diagnostics.h"

namespace cotune {

/// Of a run that is to be resumed: adds a mistake for every job without `latest` that has saved checkpoints all the same, by the run's
/// metrics.jsonl or by what else lies in its folder (as of a copy that is not whole): it would begin again, and what it has saved would go. The
/// mistake says how to go on, or to begin the job again. Changes nothing. jobs: names; of those that a kill kept from their first checkpoint
/// nothing is said.
void check_lost_checkpoints(const std::filesystem::path& run, const std::vector<std::string>& jobs, Diagnostics& mistakes);

}  // namespace cotune
