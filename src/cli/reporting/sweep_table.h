#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "train/sweep_folder.h"

namespace cotune {

/// A sweep's result for people: a line per candidate (by the end of its name), best first whether it has left an adapter or not,
/// with the values that differ among them, the held-out loss of the adapter that it leaves or would leave now, its steps and how it
/// ended. Below, whose adapter is the best that was left, and which candidate is ahead of it. Lines of at most `columns` as far as
/// that goes: the widest columns are cut. folder: of the best candidate's adapter.
std::vector<std::string> sweep_table(const SweepStanding& standing, const std::filesystem::path& folder, size_t columns);

/// What a sweep will try and how: `sweep sql: 6 candidates of adapter.r, train.learning_rate; rungs at steps 50, 150`.
std::string sweep_line(const std::string& name, const std::vector<const TrainingJob*>& candidates);

}  // namespace cotune
