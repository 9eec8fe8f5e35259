/// What a run is begun or resumed with, and what a start in its folder would refuse (`cotune train --check`).
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "base/diagnostics.h"
#include "cli/inputs/run_setup.h"
#include "device/compute_device.h"
#include "schedule/pipeline/rank_plan.h"
#include "train/device_costs.h"
#include "train/round_planner.h"
#include "train/run_record.h"
#include "train/training_job.h"

namespace cotune {

/// Of a run as it is begun with these inputs: what a later one that resumes it must agree with. Reads every weight once.
RunRecord make_record(const RunInputs& inputs, at::ScalarType compute, const ComputeDevice& device, int64_t limit_bytes);

/// Adds a mistake where a run would go on as something else than it was; says on standard error where its last bits will differ.
void compare_with(const RunRecord& before, const RunRecord& now, const std::filesystem::path& folder, Diagnostics& mistakes);

/// The jobs of the inputs, whose data they take.
std::vector<std::unique_ptr<TrainingJob>> make_jobs(RunInputs& inputs, at::ScalarType compute, const ComputeDevice& device);

/// By what a start in the run's folder would begin.
struct RunStart {
  const ComputeDevice& device;
  int64_t limit_bytes = 0;
  const DeviceCosts& costs;
  std::span<const PipelineLayout> layouts;  ///< that a plan prescribes; may be none
  bool ranks_are_processes = false, resumes = false;
};

/// `--check`: everything that a start would refuse is added to what is known; prints the report, as JSON also of mistakes. Nothing is
/// written. Throws UserError with all mistakes.
void check_run(RunInputs& inputs, const RunStart& start, RoundPlanner planner, bool as_json, Diagnostics& mistakes);

}  // namespace cotune
