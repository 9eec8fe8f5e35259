#pragma once

#include <filesystem>
#include <utility>
#include <vector>

#include "base/diagnostics.h"
#include "jobs/jobs_file.h"

namespace cotune {

/// Adds a mistake for every input of a run that lies in the earlier run which `--overwrite` would remove from the output folder: initial
/// adapters, data, templates, the model, the file of an emulated device, the jobs file, and `files`: of options beside it, each with its option.
/// Links are followed; what is one and lies there is lost, too.
void check_overwritten_inputs(const JobsFileReading& reading, const std::filesystem::path& jobs_file,
                              const std::vector<std::pair<const char*, std::filesystem::path>>& files, Diagnostics& mistakes);

}  // namespace cotune
