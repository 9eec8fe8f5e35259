#include "console/early_stop.h"

#include <unistd.h>

#include <csignal>

#include "base/abrupt_exit.h"

namespace cotune {
namespace {

extern "C" void on_early_stop(int) {
  write_to_standard_error(stopped_before_training);
  ::_exit(stopped_exit_code);
}

}  // namespace

void catch_early_stops() {
  struct sigaction action{};
  action.sa_handler = on_early_stop;
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before{};
    if (number == SIGHUP && sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
}

}  // namespace cotune
