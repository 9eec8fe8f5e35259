#pragma once

#include "cli/run/supervised_run.h"
#include "train/run_observer.h"

namespace cotune {

/// Tells the supervising process of checkpoints.
class SavedProgress : public RunObserver {
 public:
  /// supervised: not nullptr where it observes.
  explicit SavedProgress(SupervisedRun* supervised) : supervised_(supervised) {}
  void on_checkpoint(const TrainingJob&) override { supervised_->has_saved(); }

 private:
  SupervisedRun* supervised_;
};

}  // namespace cotune
