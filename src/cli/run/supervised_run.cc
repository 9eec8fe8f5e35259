#include "cli/run/supervised_run.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <new>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/abrupt_exit.h"
#include "base/error.h"
#include "base/json_text.h"
#include "cli/terminal/stop_signals.h"
#include "console/command_line.h"
#include "console/output.h"
#include "watch/terminal.h"

namespace cotune {

struct SupervisedRun::Shared {
  std::atomic<bool> begun{false}, for_good{false};
  std::atomic<int64_t> saved{0}, beats{0};
  std::atomic<double> hang_timeout_s{0};
};
static_assert(std::atomic<double>::is_always_lock_free && std::atomic<int64_t>::is_always_lock_free);

namespace {

constexpr int most_fruitless_starts = 3;
constexpr double patience_s = 5;  ///< beyond the hang timeout: the process is to find by itself that others hang

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds time_to_notice{10};  ///< that a rank has left: those that are left end within five seconds

bool is_stop(int number) { return number == SIGINT || number == SIGTERM || number == SIGHUP; }

}  // namespace

SupervisedRun::SupervisedRun() {
  void* memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw SystemError(fmt::format("--restarts: no memory to share with the run: {}", std::strerror(errno)));
  shared_ = new (memory) Shared;
}

bool SupervisedRun::resumes() const { return restart_ > 0 && shared_->begun; }
void SupervisedRun::has_begun() { shared_->begun = true; }
void SupervisedRun::has_saved() { ++shared_->saved; }
void SupervisedRun::ends_for_good() { shared_->for_good = true; }
void SupervisedRun::is_watched(double hang_timeout_s) { shared_->hang_timeout_s = hang_timeout_s; }
void SupervisedRun::lives() { ++shared_->beats; }

/// Takes the signals that it waits for, until it is destroyed.
class Supervisor {
 public:
  explicit Supervisor(const RestartSettings& settings) : settings_(settings) {
    ::sigemptyset(&awaited_);
    for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP}) {
      struct sigaction before{};
      if (number == SIGHUP && ::sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
      ::sigaddset(&awaited_, number);
    }
    struct sigaction by_default{};
    by_default.sa_handler = SIG_DFL;  // a child whose end is ignored leaves no status
    ::sigaction(SIGCHLD, &by_default, &child_before_);
    struct sigaction ignored{};
    ignored.sa_handler = SIG_IGN;  // whoever read what is told may have left
    ::sigaction(SIGPIPE, &ignored, &pipe_before_);
    ::sigprocmask(SIG_BLOCK, &awaited_, &mask_before_);
  }
  ~Supervisor() {
    if (!is_run_) end_by_stop_signals();
    give_signals_back();
  }
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  int supervise(const std::function<int(SupervisedRun&)>& run) {
    int fruitless_starts = 0;
    while (true) {
      const int64_t saved = shared().saved;
      if (const std::optional<int> code = start(run)) return *code;
      wait_for_end();
      terminal_.mend();
      if (ended_well() || run_.gives_up_) return exit_code();
      fruitless_starts = shared().saved > saved ? 0 : fruitless_starts + 1;
      if (run_.restart_ == settings_.restarts) {
        tell(fmt::format("{}, after as many restarts as --restarts allows ({}); --resume goes on from every job's last checkpoint",
                         how_it_ended(), settings_.restarts));
        return exit_code();
      }
      ++run_.restart_;
      if (settings_.rank == 0 && fruitless_starts == most_fruitless_starts) {
        const int code = exit_code();
        tell(fmt::format("{}, and {} starts in a row have saved nothing: it is not started again. Once that is mended, --resume goes on",
                         how_it_ended(), fruitless_starts));
        if (settings_.size > 1) give_up(run);
        return is_run_ ? exit_code_ : code;
      }
      tell_restart();
    }
  }

 private:
  SupervisedRun::Shared& shared() const { return *run_.shared_; }

  /// The exit code of run in the process that was made for it, nothing in this one.
  std::optional<int> start(const std::function<int(SupervisedRun&)>& run) {
    shared().for_good = false;
    shared().hang_timeout_s = 0;
    killed_for_hanging_ = false;
    const pid_t own = ::getpid();
    child_ = ::fork();
    if (child_ < 0) throw SystemError(fmt::format("--restarts: no process for the run: {}", std::strerror(errno)));
    if (child_ > 0) return std::nullopt;
    ::prctl(PR_SET_PDEATHSIG, settings_.rank == 0 ? SIGTERM : SIGKILL);
    if (::getppid() != own) ::raise(SIGKILL);
    is_run_ = true;
    give_signals_back();
    exit_code_ = run(run_);
    return exit_code_;
  }

  void give_up(const std::function<int(SupervisedRun&)>& run) {
    run_.gives_up_ = true;
    if (!start(run)) wait_for_end();
  }

  void wait_for_end() {
    Clock::time_point last = Clock::now();
    int64_t beats = shared().beats;
    double still_s = 0;
    while (::waitpid(child_, &status_, WNOHANG) == 0) {
      siginfo_t info{};
      const timespec second{1, 0};
      const int number = ::sigtimedwait(&awaited_, &info, &second);
      if (is_stop(number)) note_stop(number);
      // No more than the time that this process ran itself: a suspended machine is no hang.
      const Clock::time_point now = Clock::now();
      still_s += std::min(2.0, std::chrono::duration<double>(now - last).count());
      last = now;
      const double allowed_s = shared().hang_timeout_s;
      if (allowed_s == 0 || shared().beats != beats) still_s = 0;
      beats = shared().beats;
      if (still_s <= allowed_s + patience_s || killed_for_hanging_) continue;
      killed_for_hanging_ = true;
      ::kill(child_, SIGKILL);
    }
  }

  void note_stop(int number) {
    is_stopped_ = settings_.rank == 0;
    if (number != SIGHUP) ++stop_count_;
    last_stop_ = Clock::now();
    pass_stop_signal_on(child_, number);
  }

  /// A second request ends the first rank at once, by a signal: who follows it has lost it then, and gets no code that says so.
  bool is_left_by_stopped_first_rank() const {
    return stop_count_ >= 2 && !WIFSIGNALED(status_) && Clock::now() - last_stop_ < time_to_notice;
  }

  bool ended_well() const {
    if (is_stopped_ || is_left_by_stopped_first_rank() || shared().for_good) return true;
    return WIFSIGNALED(status_) ? is_stop(WTERMSIG(status_)) : WEXITSTATUS(status_) == 0 || WEXITSTATUS(status_) == 130;
  }

  int exit_code() const { return WIFSIGNALED(status_) ? 128 + WTERMSIG(status_) : WEXITSTATUS(status_); }

  std::string how_it_ended() const {
    const std::string who = settings_.size > 1 ? fmt::format("rank {}", settings_.rank) : "the run";
    if (killed_for_hanging_) return fmt::format("{} did not run any more, and was killed", who);
    if (WIFSIGNALED(status_)) return fmt::format("{} has ended by signal {} ({})", who, WTERMSIG(status_), ::strsignal(WTERMSIG(status_)));
    return fmt::format("{} has ended with exit code {}", who, WEXITSTATUS(status_));
  }

  /// Ranks that end since another one has left are as many as there are; the first speaks for them.
  bool speaks() const { return settings_.rank == 0 || WIFSIGNALED(status_); }

  void tell(const std::string& text) const {
    if (speaks()) write_to_standard_error(text + "\n");
  }

  void tell_restart() const {
    const std::string restart = fmt::format("{}: restart {} of {}", how_it_ended(), run_.restart_, settings_.restarts);
    const char* from = shared().begun ? "from every job's last checkpoint" : "from its beginning";
    tell(settings_.rank == 0 ? fmt::format("{}, {}", restart, from) : restart);  // what has begun the first rank's process alone knows
    if (!settings_.json || settings_.rank != 0) return;
    const nlohmann::ordered_json event{
        {"event", "restart"}, {"restart", run_.restart_}, {"of", settings_.restarts}, {"reason", how_it_ended()}};
    print_line(text_of_json(event));
  }

  /// One that comes when the run is over is none before it began (console/early_stop.h).
  void end_by_stop_signals() const {
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
      if (::sigismember(&awaited_, number) == 1) std::signal(number, SIG_DFL);
    }
  }

  void give_signals_back() {
    ::sigaction(SIGCHLD, &child_before_, nullptr);
    ::sigaction(SIGPIPE, &pipe_before_, nullptr);
    ::sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  }

  const RestartSettings settings_;
  const TerminalOfAnother terminal_;
  SupervisedRun run_;
  sigset_t awaited_{}, mask_before_{};
  struct sigaction child_before_{}, pipe_before_{};
  pid_t child_ = -1;
  int status_ = 0;
  bool is_stopped_ = false;  ///< of the first rank, whose run stops then; another one's goes on until the first has ended
  int stop_count_ = 0;       ///< requests to stop that this process was sent
  Clock::time_point last_stop_;
  bool killed_for_hanging_ = false;
  bool is_run_ = false;  ///< this is the process that was made for it
  int exit_code_ = 0;
};

int run_with_restarts(const RestartSettings& settings, const std::function<int(SupervisedRun&)>& run) {
  return Supervisor(settings).supervise(run);
}

}  // namespace cotune
