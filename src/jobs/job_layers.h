/// A jobs file taken apart: what it and the command line give, by level, before merging.
#pragma once

#include <string>
#include <vector>

#include "jobs/option_layer.h"

namespace cotune {

/// What is given for one job, lowest level first: its own entry, then the command line.
struct JobLayers {
  OptionLayer own;
  OptionLayer overrides;
  int line = 0;
  size_t place = 0;  ///< its entry in `jobs`, counted from 0
};

/// In a file, candidates of sweeps included.
inline constexpr size_t most_jobs = 10'000;

struct JobsFileLayers {
  OptionLayer top;            ///< model and run
  OptionLayer top_overrides;
  OptionLayer defaults;
  OptionLayer defaults_overrides;
  std::vector<JobLayers> jobs;
};

/// Reads the document's sections; reports a missing or other version, unknown keys, wrong values, no jobs. Throws
/// UserError at once when the document is no map.
JobsFileLayers read_layers(const YAML::Node& document, const std::string& file, MistakeList& mistakes);

/// Adds `key=value` texts (jobs_file.h). Of two for one option the later wins.
void add_overrides(const std::vector<std::string>& overrides, JobsFileLayers& layers, MistakeList& mistakes);

/// What messages call the command line.
inline constexpr const char* override_file = "--set";

}  // namespace cotune
