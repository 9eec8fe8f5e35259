#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace cotune {

enum class JobStatus { waiting, running, finished, stopped_early, failed, refused };
std::string to_string(JobStatus status);

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
  double best_eval_loss = std::numeric_limits<double>::quiet_NaN();
  int64_t best_step = -1;
  int64_t evaluations_without_improvement = 0;
  JobStatus status = JobStatus::waiting;
  std::string failure;
  std::string data_hash;        ///< of the tokenised training data: a resumed run refuses other data
  std::string spec_hash;        ///< of the job's effective configuration

  std::string to_json() const;
  /// Throws UserError naming file and field.
  static JobState from_json(const std::string& text, const std::string& file_name);
};

}  // namespace cotune
