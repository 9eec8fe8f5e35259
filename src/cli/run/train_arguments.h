/// The command line of `cotune train`, and how the run came to be started.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/launcher.h"

namespace cotune {

class SupervisedRun;

struct TrainArguments {
  std::string jobs_file;
  std::vector<std::string> overrides;
  std::string profile, plan, trace;
  std::string replan = "auto";
  int64_t sample_tokens = 0;
  bool check = false, json = false, plain = false, resume = false, overwrite = false;
  std::optional<double> hang_timeout_s;
  Launching launch;  ///< of this process
  int32_t restarts = 0;
  SupervisedRun* supervised = nullptr;  ///< with --restarts, in the process that trains
};

}  // namespace cotune
