#pragma once

#include <memory>

#include "cli/model_text.h"
#include "engine/generation.h"
#include "train/run_observer.h"

namespace cotune {

/// Prints each job's greedy answer to its first held-out example, before and after training (`--sample-tokens`).
class SampleAnswers : public RunObserver {
 public:
  /// text must outlive this. max_new_tokens: length of an answer. name_width: of the column of names.
  SampleAnswers(std::shared_ptr<const Backbone> backbone, const ModelText& text, int64_t max_new_tokens,
                size_t name_width);

  void on_job_started(const TrainingJob& job) override;
  void on_job_ended(const TrainingJob& job) override;

 private:
  void print(const TrainingJob& job, const char* when);

  Generator generator_;
  const ModelText& text_;
  int64_t max_new_tokens_;
  size_t name_width_;
};

}  // namespace cotune
