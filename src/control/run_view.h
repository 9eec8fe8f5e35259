/// A run as a screen shows it: one value, whoever draws it. It comes from the run itself, over its control socket (the request
/// `view`), or from the files of a run that has ended (watch/run_log.h).
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace cotune {

/// One job as it stands. NaN: not known yet.
struct JobReport {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();
  std::string name, tenant;
  std::string sweep;       ///< of which it is a candidate; "": of none
  bool by_accuracy = false;  ///< candidates are compared by held-out accuracy, and by loss where that is equal; else by loss
  std::string status;      ///< waiting, running, paused, finished, stopped_early, failed, refused, cancelled;
                           ///< of a run without a process also stopped: it goes on with --resume, unless the run is emulated
  int64_t priority = 0;
  std::string deadline;    ///< as the jobs file has it
  bool added = false;      ///< while the run went on
  int64_t step = 0, steps = 0;  ///< steps: 0 where only the log of an old run could say
  double loss = unknown, eval_loss = unknown, eval_accuracy = unknown;
  double result_loss = unknown, result_accuracy = unknown;  ///< held out, of the adapter that it would leave now, by which sweeps compare: the
                                                            ///< best evaluation's under load_best_model_at_end, else the last; none of step 0
  double tokens_per_second = unknown, seconds_left = unknown;  ///< while it runs
  std::string reason;      ///< why it waits, or failed
  std::string checkpoint;  ///< folder of the newest one; "": none
  std::string adapter;     ///< folder of the result; "": none yet
};

/// The run as it stands.
struct RunReport {
  int64_t pid = 0;     ///< 0: no process trains in the folder
  std::string folder;
  std::string phase;   ///< training (with pid 0: by a process that cannot be asked), idle (nothing to do: it waits for jobs), stopping; of a run
                       ///< without a process: ended, interrupted (saved, --resume goes on, unless it is emulated), killed; loading: a process
                       ///< holds the folder and has not begun yet; unresponsive: it listens and does not answer
  bool stay = false;   ///< waits for further jobs when all have ended
  bool emulated = false;  ///< nothing is computed: nothing of it is saved, and --resume cannot go on with it
  int64_t rounds = 0;  ///< of training
  double seconds = 0;  ///< since the run began
  std::map<std::string, int64_t> jobs;  ///< how many, by status
};

struct JobView {
  JobReport report;
  double learning_rate = JobReport::unknown;
  std::vector<double> losses;  ///< the course of the loss, oldest first: means of equally many steps (watch/trend.h)
};

struct MemoryView {
  std::string device = "cpu";  ///< whose memory it is: the process's, or that of a device by its name
  int64_t used_bytes = 0;      ///< 0: not known
  int64_t peak_bytes = 0;
  int64_t limit_bytes = 0;     ///< that the run holds, or that the device has; 0: none
};

/// What one of several ranks did in the training rounds so far, or since the ranks were divided anew.
struct RankView {
  std::string host;      ///< of a process; "": it is a thread
  std::vector<std::pair<int64_t, int64_t>> layers;  ///< of its stages, first and last
  int64_t replica = 0;   ///< of the model
  int64_t part = 0, parts = 1;  ///< of each of these layers, where ranks divide them
  double busy = JobReport::unknown, exposed = JobReport::unknown, bubble = JobReport::unknown;  ///< shares of its time, as in the summary
  bool operator==(const RankView&) const = default;
};

struct RunView {
  RunReport run;
  std::vector<JobView> jobs;   ///< in the order in which they came
  MemoryView memory;
  std::vector<RankView> ranks; ///< where there are several, after the first training round
  std::vector<std::string> events;  ///< what happened, a line each, oldest first: the newest of a run that goes on
  double tokens_per_second = JobReport::unknown;  ///< of all jobs, while they train; of a run that has ended: over all its training
  double seconds_left = JobReport::unknown;       ///< until the last of the jobs that run has ended
};

}  // namespace cotune
