/// What `cotune train` does once its command line is read: everything that a start would refuse, loading, the run, and its report.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cotune {

class RankProcesses;
class SupervisedRun;

/// The command line, and how the run came to be started.
struct TrainArguments {
  std::string jobs_file;
  std::vector<std::string> overrides;
  std::string profile, plan, trace;
  std::string replan = "auto";
  int64_t sample_tokens = 0;
  bool check = false, json = false, plain = false, resume = false, overwrite = false;
  std::optional<double> hang_timeout_s;
  bool is_restart = false;  ///< a launcher has started the run again
  int32_t restarts = 0;
  SupervisedRun* supervised = nullptr;  ///< with --restarts, in the process that trains
};

/// One run from its jobs file to its summary, in the process that has the trainer. processes: the others that were launched with it;
/// nullptr: none. Returns the exit code: 0; 1 where a job failed, or output; 130 where it was stopped. Throws UserError where it is not to start,
/// SystemError where it cannot go on.
int train(TrainArguments arguments, RankProcesses* processes, std::chrono::steady_clock::time_point program_start);

}  // namespace cotune
