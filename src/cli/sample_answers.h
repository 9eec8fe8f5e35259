#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cli/model_text.h"
#include "engine/generation.h"
#include "train/run_observer.h"

namespace cotune {

/// A job's greedy answer to its first held-out example, or to its first example where none is held out.
struct SampleAnswer {
  const TrainingJob* job = nullptr;
  int64_t step = 0;           ///< after which the adapter was as it answers; 0: before training
  std::string prompt, answer;
  bool out_of_memory = false; ///< no answer: no memory was left for one
};

/// Has each job answer before and after training (`--sample-tokens`): afterwards with the adapter that it leaves.
class SampleAnswers : public RunObserver {
 public:
  /// text must outlive this. max_new_tokens: length of an answer.
  SampleAnswers(std::shared_ptr<const Backbone> backbone, const ModelText& text, int64_t max_new_tokens,
                std::function<void(const SampleAnswer&)> tell);

  void on_job_started(const TrainingJob& job) override;
  void on_job_ended(const TrainingJob& job) override;

 private:
  SampleAnswer answer(const TrainingJob& job, int64_t step);

  Generator generator_;
  const ModelText& text_;
  int64_t max_new_tokens_;
  std::function<void(const SampleAnswer&)> tell_;
};

/// For people, on standard output. name_width: of the column of names.
void print_sample(const SampleAnswer& sample, size_t name_width);

}  // namespace cotune
