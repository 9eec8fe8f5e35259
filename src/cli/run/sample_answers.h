#pragma once

#include <memory>
#include <set>
#include <vector>

#include "cli/inputs/model_text.h"
#include "engine/generation.h"
#include "train/run_observer.h"

namespace cotune {

/// Has each job answer before and after training (`--sample-tokens`), and tells the run's observers: as what it starts from (the base
/// model, after its first step, so that nobody waits for it; or the adapter of init_from, before it), and at its end as the adapter that it
/// leaves.
class SampleAnswers : public RunObserver {
 public:
  /// text and observers must outlive this. max_new_tokens: length of an answer.
  SampleAnswers(std::shared_ptr<Backbone> backbone, const ModelText& text, int64_t max_new_tokens,
                std::vector<RunObserver*> observers);

  void on_job_started(const TrainingJob& job) override;
  void on_round_ended(double seconds) override;
  void on_job_ended(const TrainingJob& job) override;

 private:
  void tell(const SampleEvent& sample) const;
  SampleEvent answer(const TrainingJob& job, bool as_base_model, int64_t step);

  Generator generator_;
  const ModelText& text_;
  int64_t max_new_tokens_;
  std::vector<RunObserver*> observers_;
  std::set<const TrainingJob*> started_;      ///< without a step
  std::vector<const TrainingJob*> starting_;  ///< of these, as the base model, which has not answered for them yet
};

}  // namespace cotune
