/// What the trainer of a run is told of it.
#pragma once

#include "cli/run/loaded_run.h"
#include "cli/run/read_run.h"
#include "train/trainer.h"

namespace cotune {

/// All but who observes and controls the run. On ranks that are processes takes their links (RankProcesses::take_links). What is read must
/// outlive the trainer; its layouts and its plan are in the options then.
TrainerOptions trainer_options(ReadRun& read, const LoadedRun& loaded);

}  // namespace cotune
