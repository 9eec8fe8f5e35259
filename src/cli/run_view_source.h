#pragma once

#include <filesystem>

#include "control/run_view.h"

namespace cotune {

/// The run in a folder: as its process tells it, or, where no process listens, as its files have it. Throws UserError: it holds no run.
RunView current_view(const std::filesystem::path& run);

/// As lines on standard output, as wide as its terminal where it is one, else at most 120 columns.
void print_view(const RunView& view);

}  // namespace cotune
