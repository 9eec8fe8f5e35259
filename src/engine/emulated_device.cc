#include "engine/emulated_device.h"

#include <sys/prctl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>

namespace cotune {

void sleep_until_steady(double steady_s) {
  // Linux lets a thread sleep up to 50 us longer unless it asks otherwise.
  thread_local const int asked = ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  static_cast<void>(asked);
  const double whole = std::floor(steady_s);
  timespec until{};
  until.tv_sec = static_cast<time_t>(whole);
  until.tv_nsec = std::min<long>(999'999'999, static_cast<long>((steady_s - whole) * 1e9));
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

double EmulatedClock::wait_until(double then_s) {
  const double waited = std::max(0.0, then_s - free_s());
  streams_.wait_until(then_s);
  return waited;
}

}  // namespace cotune
