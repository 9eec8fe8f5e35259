#include "cli/interruption.h"

#include <atomic>
#include <csignal>

#include "base/sudden_end.h"

namespace cotune {
namespace {

std::atomic<bool> requested{false};

extern "C" void on_interruption(int number) {
  if (!requested.exchange(true)) return;
  before_sudden_end();
  std::signal(number, SIG_DFL);
  std::raise(number);  // delivered when this handler returns
}

}  // namespace

void catch_interruption() {
  requested = false;
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

}  // namespace cotune
