#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "cli/inputs/data_reading.h"
#include "cli/inputs/model_text.h"
#include "data/dataset.h"
#include "jobs/jobs_file.h"
#include "model/weights/model_files.h"

namespace cotune {

/// The run that jobs are to join. What it refers to must outlive it.
struct RunToJoin {
  const JobsFile& jobs_file;   ///< its model and run sections, as they are in effect
  const ModelFiles& files;
  const ModelText& text;
  DataReading data;  ///< DataReading::in_background
};

/// Jobs with their examples as tokens.
struct JoiningJobs {
  std::vector<JobSpec> specs;
  std::vector<JobData> data;
  std::map<std::string, std::string> initial_adapters;  ///< RunRecord::initial_adapters
};

/// Reads a jobs file whose jobs are to join a run, as a start does: jobs, adapters, data. Mistakes besides: a name that is
/// `taken`, another model than the run's, an option of `run` with another value than the run's. The model may be left out.
/// Uses one thread, and nothing that training changes.
JoiningJobs read_joining_jobs(const JobsText& text, const std::vector<std::string>& overrides, const RunToJoin& run,
                              const std::set<std::string>& taken, Diagnostics& mistakes);

}  // namespace cotune
