#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cli/evaluating/evaluated_data.h"
#include "cli/inputs/adapter_choice.h"
#include "train/run_record.h"

namespace cotune {

/// A run whose jobs are evaluated.
struct EvaluatedRun {
  std::filesystem::path folder;
  RunRecord record;
  std::vector<NamedAdapter> adapters;  ///< of the jobs that have held-out examples and an adapter; perhaps the model alone before them
};

/// Throws UserError where the folder holds no run, or no job with an adapter and held-out examples.
EvaluatedRun open_evaluated_run(const std::filesystem::path& folder, bool with_base);

/// The run's model and its compute type, unless the options name others.
ModelFiles model_of_run(const EvaluatedRun& run, const ModelOptions& options);
std::string dtype_of_run(const EvaluatedRun& run, const ModelOptions& options);

/// The held-out examples of each of its jobs, as the run's own configuration splits them; jobs with equal ones share a set. Says on
/// standard error where they are not those of the run any more. Throws UserError with every mistake.
std::vector<EvaluatedData> read_held_out(const EvaluatedRun& run, const EvaluateOptions& options, const AdaptedModel& model);

}  // namespace cotune
