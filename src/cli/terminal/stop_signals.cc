#include "cli/terminal/stop_signals.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <string>

#include "base/abrupt_exit.h"
#include "base/atomic_file.h"
#include "base/stop_requests.h"
#include "console/early_stop.h"

namespace cotune {
namespace {

std::atomic<bool> finishing{false}, saves_before{true}, asked_to_stop{false};
/// Made once, before any signal is caught.
int asked_event = -1;
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<void*>::is_always_lock_free);

/// Set once and never freed: the handler reads it.
std::atomic<const std::vector<std::string>*> removed_when_stopped{nullptr};

StopRequests requests_of_signals;
constexpr int passed_on_mark = 0x636f74;

void stop(int number, const siginfo_t& info) {
  const bool is_passed_on = info.si_code == SI_QUEUE && info.si_value.sival_int == passed_on_mark;
  const StopRequest request = requests_of_signals.take(number, is_passed_on);
  if (request == StopRequest::known) return;
  if (!finishing) {
    remove_unfinished_files();
    if (const std::vector<std::string>* paths = removed_when_stopped) {
      for (const std::string& path : *paths) {
        if (::unlink(path.c_str()) != 0) ::rmdir(path.c_str());
      }
    }
    write_to_standard_error(stopped_before_training);
    ::_exit(stopped_exit_code);
  }
  if (request == StopRequest::repeated) {
    before_sudden_end();
    remove_unfinished_files();
    std::signal(number, SIG_DFL);
    std::raise(number);  // delivered when this handler returns
    return;
  }
  asked_to_stop = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(asked_event, &one, sizeof one);
  write_to_standard_error(saves_before ? "stopping: every job is saved first; a second signal stops at once\n"
                                       : "stopping: nothing of an emulated run is saved; a second signal stops at once\n");
}

extern "C" void on_stop_signal(int number, siginfo_t* info, void*) {
  const int error = errno;  // of whatever it interrupts
  stop(number, *info);
  errno = error;
}

}  // namespace

void catch_stop_signals() {
  if (asked_event < 0) asked_event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action{};
  action.sa_sigaction = on_stop_signal;
  action.sa_flags = SA_SIGINFO;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before{};
    if (number == SIGHUP && sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
}

void remove_when_stopped(const std::vector<std::filesystem::path>& paths) {
  removed_when_stopped = new std::vector<std::string>(paths.begin(), paths.end());
}

void pass_stop_signal_on(pid_t process, int number) {
  sigval mark{};
  mark.sival_int = passed_on_mark;
  ::sigqueue(process, number, mark);
}

void leave_stopping_to_the_first_rank() {
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) std::signal(number, SIG_IGN);
}

void finish_before_stopping(bool saves) {
  saves_before = saves;
  finishing = true;
}

const std::atomic<bool>& stop_requested() { return asked_to_stop; }

int stop_event() { return asked_event; }

}  // namespace cotune
