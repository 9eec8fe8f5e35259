#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/diagnostics.h"
#include "cli/run/memory_check.h"
#include "train/planned_round.h"
#include "train/training_job.h"

namespace cotune {

/// What `cotune train --check` found out.
struct CheckReport {
  std::vector<std::unique_ptr<TrainingJob>> jobs;  ///< none where the inputs are mistaken
  PredictedMemory memory;
  std::string chosen_dtype;  ///< chosen_dtype_text
  std::optional<PlannedRound> plan;  ///< sharing hybrid: of all jobs together
  std::vector<Diagnostic> mistakes;  ///< in order
};

/// For people: what each job would train, on standard output.
void print_check(const CheckReport& report);

/// One JSON object on a line: docs/training.md says what is in it.
std::string check_json(const CheckReport& report);

}  // namespace cotune
