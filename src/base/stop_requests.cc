#include "base/stop_requests.h"

#include <algorithm>
#include <csignal>

namespace cotune {

StopRequest StopRequests::take(int number, bool is_passed_on) {
  Counts before = counts_, after;
  StopRequest request;
  do {
    after = before;
    request = after.any ? StopRequest::known : StopRequest::first;
    after.any = 1;
    if (number == SIGHUP) continue;
    uint16_t& own = is_passed_on ? after.passed_on : after.sent;
    const uint16_t most = std::max(after.passed_on, after.sent);
    if (++own > most && most > 0) request = StopRequest::repeated;
  } while (!counts_.compare_exchange_weak(before, after));
  return request;
}

}  // namespace cotune
