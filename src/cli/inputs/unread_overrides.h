#pragma once

#include <map>
#include <set>
#include <string>

#include "base/diagnostics.h"
#include "jobs/job.h"

namespace cotune {

/// A mistake for every option of `run` that --set gives and the command does not read. What the jobs file says of a run is no mistake:
/// it is also that of `cotune train`. command: after `cotune`; read: paths such as `run.layout`.
void refuse_unread(const std::map<std::string, OptionPlace>& run_places, const std::set<std::string>& read, const std::string& command,
                   Diagnostics& mistakes);

}  // namespace cotune
