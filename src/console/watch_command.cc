#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/shell_quoted.h"
#include "console/command_line.h"
#include "console/output.h"
#include "console/run_commands.h"
#include "console/run_view_source.h"
#include "control/client.h"
#include "control/no_run.h"
#include "watch/live_view.h"
#include "watch/run_log.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

/// Asks a run for one thing after another, on a thread of its own: a reply comes when the run has done it.
class Asker {
 public:
  using Answer = std::function<void(const ControlReply&)>;

  explicit Asker(const fs::path& run) : client_(run), thread_([this] { ask_all(); }) {}
  ~Asker() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    client_.hang_up();
    thread_.join();
  }
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;

  void ask(ControlRequest request, Answer answer) {
    const std::lock_guard lock(mutex_);
    asked_.emplace_back(std::move(request), std::move(answer));
    changed_.notify_all();
  }

 private:
  void ask_all() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return ends_ || !asked_.empty(); });
      if (ends_) return;
      const auto [request, answer] = std::move(asked_.front());
      asked_.pop_front();
      lock.unlock();
      ControlReply reply;
      try {
        reply = client_.ask(request);
      } catch (const std::exception& error) {
        reply.error = ControlError{ControlErrorCode::ended, error.what(), {}};
      }
      answer(reply);
      lock.lock();
    }
  }

  ControlClient client_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<ControlRequest, Answer>> asked_;
  bool ends_ = false;
  std::thread thread_;
};

/// The run does not answer, and the view waits for it.
extern "C" void on_second_signal(int number) {
  give_terminal_back();
  std::signal(number, SIG_DFL);
  std::raise(number);
}

std::atomic<LiveView*> watched{nullptr};

extern "C" void on_end_signal(int number) {
  if (LiveView* view = watched) view->ask_to_end();
  std::signal(number, on_second_signal);
}

/// A run as the view asks for it: connected to once its process listens, which it does when the model is loaded; as its files have it
/// where that cannot be asked.
class WatchedRun {
 public:
  /// Throws UserError as ControlClient does; CannotBeAsked where no process has the run.
  explicit WatchedRun(fs::path run) : run_(std::move(run)) {
    newest_.run.folder = run_.string();
    newest_.run.phase = "unresponsive";
    try {
      connect();
    } catch (const CannotBeAsked&) {
      if (!is_being_trained(run_)) throw;
    }
  }

  bool goes_on() const { return goes_on_; }

  std::optional<RunView> view() {
    try {
      if (!client_) connect();
      return answer();
    } catch (const CannotBeAsked&) {
      if (is_being_trained(run_)) return view_of_files();
    } catch (const SystemError&) {
    }
    goes_on_ = false;
    return std::nullopt;
  }

  void ask(ControlRequest request, Asker::Answer then) {
    if (asker_) return asker_->ask(std::move(request), std::move(then));
    ControlReply reply;
    reply.error = ControlError{ControlErrorCode::failed, "the run cannot be asked: nobody listens at its socket, or it is another user's", {}};
    then(reply);
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds between_keys{200};
  static constexpr std::chrono::seconds between_readings{2};

  void connect() {
    client_ = std::make_unique<ControlClient>(run_);
    asker_ = std::make_unique<Asker>(run_);
    answered_ = Clock::now();
  }

  RunView view_of_files() {
    if (is_starting(run_)) return view_of_start(run_);
    if (!read_ || Clock::now() - *read_ >= between_readings) {
      newest_ = view_of(read_run_log(run_), true);
      read_ = Clock::now();
    }
    return newest_;
  }

  std::optional<RunView> answer() {
    ControlRequest request;
    request.action = ControlAction::view;
    const std::optional<ControlReply> reply = client_->ask_within(between_keys, request);
    if (reply && reply->error) throw UserError(reply->error->message);
    if (reply && !reply->view) return std::nullopt;
    if (reply) {
      newest_ = *reply->view;
      answered_ = Clock::now();
    } else if (Clock::now() - answered_ > most_seconds_to_answer) {
      newest_.run.phase = "unresponsive";
    }
    return newest_;
  }

  fs::path run_;
  std::unique_ptr<ControlClient> client_;  ///< none while the run loads, or cannot be asked
  std::unique_ptr<Asker> asker_;
  bool goes_on_ = true;
  RunView newest_;
  Clock::time_point answered_;
  std::optional<Clock::time_point> read_;  ///< its files
};

/// Returns when the user has enough or the run has ended: whether the run goes on.
bool watch(const fs::path& folder) {
  WatchedRun run(folder);
  const auto ask = [&](ControlRequest request, Asker::Answer then) { run.ask(std::move(request), std::move(then)); };
  LiveView view({.view = [&] { return run.view(); }, .ask = ask}, "leave", "leaves", [](const std::string& line) { print_line(line); });
  watched = &view;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, on_end_signal);
  view.wait();
  watched = nullptr;
  return run.goes_on();
}

int watch_run(const fs::path& run) {
  if (!holds_run(run)) throw_no_run(run);
  if (!has_live_terminal()) {
    throw_user_error("standard input and output are no terminal to draw on: `cotune status --run {}` prints how the run stands",
                     shell_quoted(run.string()));
  }
  bool goes_on = true;
  try {
    goes_on = watch(run);
  } catch (const CannotBeAsked&) {
    goes_on = false;
  }
  // Its process writes the summary when its socket has gone.
  for (int i = 0; !goes_on && i < 100 && is_being_trained(run); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::vector<std::string> damage;
  const RunView view = current_view(run, damage);
  tell_of_damage(damage);
  print_view(view);
  return output_failed() ? 1 : 0;
}

}  // namespace

void add_watch_command(CLI::App& app) {
  auto run = std::make_shared<std::string>("runs/latest");
  CLI::App* command = app.add_subcommand("watch", "The live view of a run that goes on, keys included (docs/watching.md)");
  command->add_option("--run", *run, "The run's folder (runs/latest)");
  command->callback([run] { exit_code() = watch_run(*run); });
}

}  // namespace cotune
