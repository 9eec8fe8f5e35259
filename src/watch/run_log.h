/// What the files of a run say of it: run.json, metrics.jsonl and, where the run has ended, summary.json (docs/training.md).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "control/run_view.h"
#include "jobs/job.h"

namespace cotune {

struct LoggedStep {
  int64_t step = 0;
  double loss = JobReport::unknown, learning_rate = JobReport::unknown, gradient_norm = JobReport::unknown;
  int64_t real_tokens = 0;
  double seconds = 0;  ///< of training: what a run that was resumed took before comes before
};

struct LoggedEvaluation {
  int64_t step = 0;
  double loss = JobReport::unknown, accuracy = JobReport::unknown;
  bool best = false;
  double seconds = 0;
};

/// A job's answer to an example (`--sample-tokens`).
struct LoggedSample {
  int64_t step = 0;  ///< 0: before training
  std::string prompt;
  std::optional<std::string> answer;  ///< nothing: no memory was left for one
};

/// What the whole process took at one time.
struct LoggedUsage {
  double seconds = 0;
  int64_t resident_bytes = 0, tensor_bytes = 0;
  std::optional<int64_t> device_bytes;
  double tokens_per_second = JobReport::unknown;  ///< of all jobs, since the one before
};

struct LoggedJob {
  JobSpec spec;
  std::string status;  ///< as the run's end, or its last event, left it; `stopped` where it ran and nobody trains it any more
  std::string reason;
  int64_t step = 0, steps = 0;      ///< made; in all (0: not said)
  std::optional<int64_t> adapter_step;  ///< of the adapter that is left
  double eval_loss = JobReport::unknown, start_eval_loss = JobReport::unknown;
  double eval_accuracy = JobReport::unknown, start_eval_accuracy = JobReport::unknown;
  double result_loss = JobReport::unknown, result_accuracy = JobReport::unknown;  ///< as of JobReport
  std::vector<LoggedStep> made;
  std::vector<LoggedEvaluation> evaluations;
  std::vector<LoggedSample> samples;
};

/// Of summary.json.
struct LoggedSummary {
  bool interrupted = false;
  double seconds = 0, seconds_training = 0, seconds_evaluating = 0;
  double tokens_per_second = JobReport::unknown;
  int64_t rounds = 0, real_tokens = 0, labelled_tokens = 0;
  int64_t peak_resident_bytes = 0, peak_device_bytes = 0, device_bytes = 0;
  std::string device;
  std::vector<RankView> ranks;  ///< where there were several
};

struct RunLog {
  std::filesystem::path folder;
  std::string configuration;  ///< the effective jobs file
  std::string model, compute_dtype, instruction_set;
  int64_t memory_limit_bytes = 0;
  bool emulated = false;
  std::vector<LoggedJob> jobs;
  std::vector<LoggedUsage> usage;
  std::vector<std::string> notices;
  double seconds = 0;                    ///< of the last event
  std::optional<LoggedSummary> summary;  ///< of a run that has ended
  /// What was left out, since it could not be read: lines of metrics.jsonl, summary.json. A message for each of the two files.
  std::vector<std::string> damage;
};

/// A half line at the end of metrics.jsonl, which a run that goes on may be writing, is left out. Throws UserError: the folder
/// holds no run; its run.json is damaged.
RunLog read_run_log(const std::filesystem::path& folder);

/// The events of metrics.jsonl, added to what is known; jobs that `log` does not have are left out. Lines that are none are counted in one
/// message of log.damage, which names the first. file_name: for messages.
void add_metrics(RunLog& log, std::string_view text, const std::string& file_name);

/// Whether a process holds the folder and has not written its run's end yet: it loads the model, or it trains.
bool is_being_trained(const std::filesystem::path& folder);

/// Whether that process has not begun yet: what stands in the folder is of an earlier one, or nothing does.
bool is_starting(const std::filesystem::path& folder);

/// A run whose process holds the folder and has written nothing into it yet.
RunView view_of_start(const std::filesystem::path& folder);

/// The run as its files have it, of which no process tells. is_being_trained: by a process that has begun and cannot be asked.
RunView view_of(const RunLog& log, bool is_being_trained);

}  // namespace cotune
