#include "base/end_wishes.h"

#include <algorithm>
#include <csignal>

namespace cotune {

EndWish EndWishes::take(int number, bool is_passed_on) {
  Counts before = counts_, after;
  EndWish wish;
  do {
    after = before;
    wish = after.any ? EndWish::known : EndWish::first;
    after.any = 1;
    if (number == SIGHUP) continue;
    uint16_t& own = is_passed_on ? after.passed_on : after.sent;
    const uint16_t most = std::max(after.passed_on, after.sent);
    if (++own > most && most > 0) wish = EndWish::repeated;
  } while (!counts_.compare_exchange_weak(before, after));
  return wish;
}

}  // namespace cotune
