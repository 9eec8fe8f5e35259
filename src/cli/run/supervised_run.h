/// `cotune train --restarts N`: a process that starts the run, waits for its end, and starts it again where that came too early.
#pragma once

#include <cstdint>
#include <functional>

namespace cotune {

/// What a run tells the process that supervises it, through memory that both have until they end. One for all starts; any thread of the run
/// may call any of it.
class SupervisedRun {
 public:
  SupervisedRun();
  SupervisedRun(const SupervisedRun&) = delete;
  SupervisedRun& operator=(const SupervisedRun&) = delete;

  /// How often it has been started again.
  int32_t restart() const { return restart_; }
  /// Its folder holds what a start before this one has begun.
  bool resumes() const;
  /// It is not started again, and this start has only to tell the other ranks so.
  bool gives_up() const { return gives_up_; }

  void has_begun();           ///< the folder holds this run
  void has_saved();           ///< a checkpoint
  void ends_for_good();       ///< however it ends from now on, a start would not help, or is not needed
  /// lives() is called every second at least from now on; where it is not for this time and a few seconds, the process hangs as a whole. 0: no more.
  void is_watched(double hang_timeout_s);
  void lives();

 private:
  friend class Supervisor;
  struct Shared;
  Shared* shared_;
  int32_t restart_ = 0;
  bool gives_up_ = false;
};

struct RestartSettings {
  int32_t restarts = 0;  ///< at most
  int32_t rank = 0, size = 1;  ///< of this process among those that were launched together
  bool json = false;           ///< tell restarts on standard output too, as a line of --json
};

/// Calls run in a process of its own, which it returns from with the exit code of run: the caller goes on there as though there were no
/// other. It returns in this process when the last of these processes has ended, with its exit code, or 128 + the signal that ended it.
/// Must be called while the process has one thread.
///
/// A process that ended by a signal, by an exception but UserError before ends_for_good(), or with another exit code than 0 and 130 is
/// followed by another one, up to settings.restarts times; not by SIGINT, SIGTERM or SIGHUP, after which it has stopped, nor where three
/// in a row have saved nothing (rank 0 knows: it tells the others by a last start that gives_up()). These signals are passed on to the process.
/// The run stops by those that rank 0 gets: another rank's goes on after one until the first has ended, and is started again meanwhile.
/// One that does not run any more (is_watched) is killed. Each end that matters is told on standard error.
///
/// Where this process is killed the run stops as by SIGTERM, and a rank but the first at once.
int run_with_restarts(const RestartSettings& settings, const std::function<int(SupervisedRun&)>& run);

}  // namespace cotune
