#pragma once

#include <string>

#include "watch/run_log.h"

namespace cotune {

/// The part of a run's page that compares the candidates of its sweeps: for each sweep a table, best first, and what they are
/// compared by (held-out losses, or of metric eval_accuracy the shares of rows right) over the steps, and over the values of each option
/// that differs. "" of a run without sweeps.
std::string sweep_sections(const RunLog& log);

}  // namespace cotune
