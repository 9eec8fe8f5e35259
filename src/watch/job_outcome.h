#pragma once

#include <string>

#include "control/protocol.h"

namespace cotune {

/// What has become of a job that something was asked for, on one line: `sql: paused at step 120; checkpoint …`.
std::string job_outcome(const JobReport& job, ControlAction action);

}  // namespace cotune
