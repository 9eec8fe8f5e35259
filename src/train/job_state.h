#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace cotune {

/// waiting: for memory. paused: by the user, until the user resumes it. The others after running are ends.
enum class JobStatus { waiting, running, paused, finished, stopped_early, failed, refused, cancelled };
std::string to_string(JobStatus status);
bool has_ended(JobStatus status);

/// What a job's checkpoint holds beside its tensors; with the jobs file it determines the rest of the run.
struct JobState {
  int64_t step = 0;             ///< optimizer steps made; epoch and position in the data follow from it
  double epoch = 0;
  int64_t trained_tokens = 0;   ///< real tokens
  int64_t labelled_tokens = 0;
  double last_loss = 0;
  double start_eval_loss = std::numeric_limits<double>::quiet_NaN();  ///< before training; NaN: not evaluated
  double last_eval_loss = std::numeric_limits<double>::quiet_NaN();
  double start_eval_accuracy = std::numeric_limits<double>::quiet_NaN();  ///< share of rows with every token predicted
  double last_eval_accuracy = std::numeric_limits<double>::quiet_NaN();
  int64_t last_eval_step = -1;  ///< of the newest evaluation that was finished
  // Of the evaluation with the lowest loss after a step of training: that of the start is what they are compared
  // with, as HF Trainer has it.
  double best_eval_loss = std::numeric_limits<double>::quiet_NaN();
  double best_eval_accuracy = std::numeric_limits<double>::quiet_NaN();
  int64_t best_step = -1;
  int64_t evaluations_without_improvement = 0;
  std::string stopped;          ///< by its sweep, why: `halving at step 50, rank 7 of 9`
  bool missed_deadline = false; ///< it trained, was evaluated or waited after its deadline
  std::string data_hash;        ///< of the tokenized examples, held-out ones included: a resumed run refuses others
  std::string spec_hash;        ///< of the settings that determine results (jobs/settings.h)

  // How the job stands in this run; not in checkpoints, from which any job goes on.
  JobStatus status = JobStatus::waiting;
  std::string failure;
  std::string wait_reason;       ///< of a job that waits

  /// Why it ended so, where there is something to say.
  const std::string& end_reason() const { return failure.empty() ? stopped : failure; }

  std::string to_json() const;
  /// Throws UserError naming file and field.
  static JobState from_json(const std::string& text, const std::string& file_name);
};

}  // namespace cotune
