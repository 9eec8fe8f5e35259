#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "control/run_view.h"

namespace cotune {

/// So long a run may take to answer, which does so without waiting for a round, until it counts as unresponsive.
constexpr std::chrono::seconds most_seconds_to_answer{2};

/// The run in a folder: as its process tells it, or, where none listens or answers, or it is another user's, as its files have it. Throws UserError:
/// it holds no run. damage: gets what was left out of its files since it could not be read (RunLog::damage).
RunView current_view(const std::filesystem::path& run, std::vector<std::string>& damage);

/// Says it on standard error.
void tell_of_damage(const std::vector<std::string>& damage);

/// As lines on standard output, as wide as its terminal where it is one, else at most 120 columns; and how a run that was stopped goes on,
/// where it can.
void print_view(const RunView& view);

}  // namespace cotune
