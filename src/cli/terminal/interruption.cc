#include "cli/terminal/interruption.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>

#include "base/abrupt_exit.h"
#include "base/atomic_file.h"
#include "base/stop_requests.h"

namespace cotune {
namespace {

std::atomic<bool> requested{false}, to_end{false};
StopRequests stop_requests;
/// Can be read from where a signal has come. Made once, before any signal is caught.
int event = -1;
/// Can be read from where wake_input() was called.
int wake = -1;
static_assert(std::atomic<bool>::is_always_lock_free);

extern "C" void on_interruption(int number) {
  const int error = errno;  // of whatever it interrupts
  if (number != SIGINT) to_end = true;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event, &one, sizeof one);
  requested = true;
  errno = error;
  if (stop_requests.take(number) != StopRequest::repeated) return;
  before_sudden_end();
  remove_unfinished_files();
  std::signal(number, SIG_DFL);
  std::raise(number);  // delivered when this handler returns
}

}  // namespace

void catch_interruption() {
  for (int* const each : {&event, &wake}) {
    if (*each < 0) *each = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  }
  requested = to_end.load();
  if (!to_end) stop_requests.forget();
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t read = ::read(event, &count, sizeof count);
  struct sigaction action{};
  action.sa_handler = on_interruption;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before{};
    sigaction(number, nullptr, &before);
    if (number == SIGHUP && before.sa_handler == SIG_IGN) continue;  // nohup
    sigaction(number, &action, nullptr);
  }
}

bool interrupted() { return requested; }

bool asked_to_end() { return to_end; }

void wake_input() {
  const int reason = errno;
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake, &one, sizeof one);
  errno = reason;
}

bool wait_for_input(int descriptor, const std::function<void()>& when_woken) {
  while (!interrupted()) {
    pollfd waited[] = {{descriptor, POLLIN, 0}, {event, POLLIN, 0}, {wake, POLLIN, 0}};
    const int ready = ::poll(waited, 3, -1);
    if (ready > 0 && waited[2].revents != 0) {
      uint64_t count = 0;
      [[maybe_unused]] const ssize_t read = ::read(wake, &count, sizeof count);
      if (when_woken && !interrupted()) when_woken();
    }
    if (ready > 0 && waited[0].revents != 0) break;
  }
  return !interrupted();
}

}  // namespace cotune
