#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "cli/run/joining_jobs.h"
#include "cli/run/run_board.h"
#include "cli/run/run_recorder.h"
#include "control/server.h"
#include "device/compute_device.h"
#include "train/trainer.h"

namespace cotune {

/// What RunControl needs of a run. What it refers to must outlive it.
struct ControlledRun {
  std::filesystem::path folder;
  RunToJoin run;
  at::ScalarType compute = at::kFloat;
  const ComputeDevice& device;
  RunRecorder& recorder;
  int64_t memory_limit_bytes = 0;
  /// Called before jobs join whose rows have up to so many tokens; on the run's thread. May throw MemoryLimitExceeded.
  std::function<void(int64_t tokens)> allow_rows;
};

/// Does what `cotune job` asks of a run (docs/control.md). Three threads: the server's answers what only looks; one that reads
/// jobs to be added and their data, so that training does not wait for that; and the run's, which does everything else between
/// its rounds.
class RunControl {
 public:
  explicit RunControl(ControlledRun run);
  /// Waits for a jobs file that is being read.
  ~RunControl();
  RunControl(const RunControl&) = delete;
  RunControl& operator=(const RunControl&) = delete;

  /// Has the run ask here what is to be done. This must outlive the trainer that is made with the options.
  void attach(TrainerOptions& options);

  /// For a screen of this process, on any thread: what the request `view` gives, and what is asked for as through the socket.
  RunView view() const { return board_.view(); }
  void take(ControlRequest request, ControlServer::Answer answer);

  /// A line of what happened, for those who watch. On the run's thread.
  void tell(const std::string& line) { board_.tell(line); }
  /// How a job's loss went before this process took it up: by name. Before open().
  void show_losses(std::map<std::string, std::vector<double>> losses) { losses_before_ = std::move(losses); }

  /// Listens at the run's socket. Where that cannot be made: says so on standard error, and the run goes on without; throws
  /// SystemError for a run that waits for jobs, which nobody could give it.
  void open(const Trainer& trainer);
  /// Answers what is left to be answered: the run has ended.
  void close();

 private:
  struct Asked {
    ControlRequest request;
    ControlServer::Answer answer;
    std::optional<JoiningJobs> joining;  ///< of add: read
  };

  /// Puts it where it is done, or answers that the run has ended.
  void enqueue(std::deque<Asked>& queue, Asked asked);
  void read_joining_jobs_of_requests();
  /// The jobs, or why there are none.
  std::variant<JoiningJobs, ControlReply> read(const ControlRequest::JobsText& add) const;

  // On the run's thread.
  void do_what_is_asked(Trainer& trainer);
  ControlReply done(Trainer& trainer, Asked& asked);
  ControlReply join(Trainer& trainer, JoiningJobs& joining);
  static bool has_sweep(const Trainer& trainer, const std::string& name);
  bool wait_for_work();
  void wake() const;

  ControlledRun run_;
  bool stays_;
  RunBoard board_;
  std::map<std::string, std::vector<double>> losses_before_;
  std::atomic<bool> drained_{false};
  Descriptor event_;                ///< something was asked
  std::mutex mutex_;
  std::condition_variable to_read_changed_;
  std::deque<Asked> to_do_, to_read_;
  std::optional<ControlServer::Answer> reading_;  ///< of the request whose jobs are being read
  bool has_ended_ = false;          ///< all requests are answered, that of reading_ included
  std::thread reader_;
  std::unique_ptr<ControlServer> server_;
};

}  // namespace cotune
