#pragma once

#include <filesystem>

#include "base/diagnostics.h"
#include "jobs/jobs_file.h"

namespace cotune {

/// Adds a mistake for every input of a run that lies in the earlier run which `--overwrite` would remove from the output folder: initial
/// adapters, data, templates, the model, the jobs file. Links are followed; what is one and lies there is lost, too.
void check_overwritten_inputs(const JobsFileReading& reading, const std::filesystem::path& jobs_file, Diagnostics& mistakes);

}  // namespace cotune
