#pragma once

#include <atomic>

namespace cotune {

/// SIGINT, SIGTERM and SIGHUP (unless the parent ignores it: nohup) end the program in order from here on: until
/// finish_before_stopping() at once, with exit code 130, since nothing has been trained.
void catch_stop_signals();

/// From here on the first signal sets stop_requested(), and a second one ends the program as the signal does by default.
void finish_before_stopping();

const std::atomic<bool>& stop_requested();

}  // namespace cotune
