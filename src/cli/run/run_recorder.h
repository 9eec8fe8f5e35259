#pragma once

#include <utility>

#include "train/run_folder.h"
#include "train/run_observer.h"

namespace cotune {

/// Keeps run.json up to date while a run goes on: with what holds the memory limit, and with what is done to its jobs.
class RunRecorder : public RunObserver {
 public:
  RunRecorder(RunFolder& folder, RunRecord record) : folder_(folder), record_(std::move(record)) {}

  void on_relief(const MemoryRelief& relief) override {
    change([&](RunRecord& record) { record.relief = relief; });
  }

  const RunRecord& record() const { return record_; }

  /// Returns when the change is on disk. Throws SystemError.
  template <typename Change>
  void change(Change call) {
    call(record_);
    folder_.update(record_);
  }

 private:
  RunFolder& folder_;
  RunRecord record_;
};

}  // namespace cotune
