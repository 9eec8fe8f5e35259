/// What a run is made of, read and checked before anything is loaded, taken or written.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/diagnostics.h"
#include "cli/inputs/data_reading.h"
#include "cli/inputs/run_setup.h"
#include "cli/run/plan_to_follow.h"
#include "cli/run/planned_division.h"
#include "cli/run/train_arguments.h"
#include "device/compute_device.h"
#include "ops/backend.h"
#include "plan/cost/measured_times.h"
#include "schedule/profile.h"
#include "train/device_costs.h"
#include "train/emulated_times.h"
#include "train/run_folder.h"

namespace cotune {

class RankProcesses;

/// A profile of this very device, with its fits.
struct CheckedProfile {
  Profile profile;
  MeasuredTimes times;
};

/// A run as its files and options ask for it. What they mean for this process holds as long as this lives: threads, portable kernels.
struct ReadRun {
  TrainArguments arguments;            ///< resume also where the run goes on by itself
  RankProcesses* processes = nullptr;  ///< nullptr: ranks are threads
  Diagnostics mistakes;                ///< that keep it from starting
  ComputeDevice device;
  std::unique_ptr<PortableKernels> portable;
  std::optional<DataReading> data_reading;
  RunInputs inputs;
  std::optional<EmulatedTimes> emulated;  ///< where the device is
  at::ScalarType compute = at::kFloat;
  std::optional<FollowedRun> followed;    ///< the plan, where one is
  int64_t limit_bytes = 0;                ///< memory_limit; 0: none
  std::unique_ptr<CheckedProfile> profile;
  DeviceCosts costs;
  std::vector<PipelineLayout> layouts;  ///< of the replicas, where a plan or the planner prescribes them
  bool is_planned = false;              ///< run.parallel was auto

  const JobsFile& jobs_file() const { return inputs.jobs_file; }
  const RunSpec& run() const { return inputs.jobs_file.run; }
  const ModelFiles& files() const { return inputs.model.files; }
  RunFolder::Start start() const;
  /// What the planner is asked of it. Refers to this.
  DivisionQuestion division_question() const;
};

/// Reads the jobs file, model, adapters and data, the plan and the profile, and has the planner divide the ranks where it is to. processes:
/// as `train` has them. Adds every mistake to those of the run, in which less is known then.
std::unique_ptr<ReadRun> read_run(TrainArguments arguments, RankProcesses* processes);

}  // namespace cotune
