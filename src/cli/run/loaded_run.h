/// A run that may begin: its folder, its jobs, and the frozen model.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cli/inputs/backbone_parts.h"
#include "cli/run/read_run.h"
#include "schedule/pipeline/rank_plan.h"
#include "train/run_folder.h"
#include "train/run_record.h"
#include "train/sweeps.h"
#include "train/training_job.h"

namespace cotune {

struct LoadedRun {
  RunFolder folder;
  RunRecord record = {};
  std::vector<std::unique_ptr<TrainingJob>> jobs = {};
  Parallel parallel = {};
  PackingPolicy policy = {};
  std::vector<PipelineLayout> process_layouts = {};  ///< of ranks that are processes
  BackboneParts parts = {};
  RungRecords rungs = {};                            ///< of a run that goes on

  /// What the first replica's first rank computes with, or the only one.
  const std::shared_ptr<Backbone>& backbone() const { return parts.at(parallel.replicas.front().tensor).front(); }
};

/// Takes the run's folder, whose earlier run must be the same where it goes on, makes the jobs, which take the data of the run, and loads the
/// model, on the other processes, too. Nothing that was in the folder has changed yet. Throws UserError, with the mistakes of the run among
/// them, where it does not fit together, or into memory.
std::unique_ptr<LoadedRun> load_run(ReadRun& read);

/// The first change to the folder: it holds this run now. Jobs that go on have what their checkpoints have, and logs end there.
void begin_run(const ReadRun& read, LoadedRun& loaded);

}  // namespace cotune
