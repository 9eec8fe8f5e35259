/// What `cotune train` does once its command line is read: everything that a start would refuse, loading, the run, and its report.
#pragma once

#include <chrono>

#include "cli/run/train_arguments.h"

namespace cotune {

class RankProcesses;

/// One run from its jobs file to its summary, in the process that has the trainer. processes: the others that were launched with it;
/// nullptr: none. Returns the exit code: 0; 1 where a job failed, or output; 130 where it was stopped. Throws UserError where it is not to start,
/// SystemError where it cannot go on.
int train(TrainArguments arguments, RankProcesses* processes, std::chrono::steady_clock::time_point program_start);

}  // namespace cotune
