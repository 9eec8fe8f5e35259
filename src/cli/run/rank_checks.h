/// What a run asks of several ranks, held against the model and the launcher before anything starts.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/diagnostics.h"
#include "jobs/job.h"
#include "model/config/model_config.h"

namespace cotune {

/// The processes of a launcher.
struct LaunchedRanks {
  int32_t count = 0;  ///< 0: there is none
  bool on_cpu = true;
};

/// Adds a mistake where the model cannot be divided among so many ranks, here. plan: the file that the division is of; "": none.
void check_ranks(const RunSpec& run, const std::map<std::string, OptionPlace>& places, const ModelConfig& config,
                 const LaunchedRanks& launched, const std::string& plan, Diagnostics& mistakes);

}  // namespace cotune
