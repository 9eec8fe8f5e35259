#pragma once

#include <sys/types.h>

#include <atomic>
#include <filesystem>
#include <vector>

namespace cotune {

/// SIGINT, SIGTERM and SIGHUP (unless the parent ignores it: nohup) end the program in order from here on: until
/// finish_before_stopping() at once, with exit code 130, since nothing has been trained.
void catch_stop_signals();

/// Until finish_before_stopping(): what a stop removes before it ends the program, in this order: files, and folders where
/// they are empty.
void remove_when_stopped(const std::vector<std::filesystem::path>& paths);

/// From here on the first signal sets stop_requested(), and a second one (StopRequest::repeated) ends the program as the signal does by default.
/// saves: jobs, before the end; false: the run is emulated, which is said.
void finish_before_stopping(bool saves);

/// For the parent of a process that catches stop signals. Where that one gets a signal itself too, as all of a terminal's foreground do,
/// both are one.
void pass_stop_signal_on(pid_t process, int number);

/// Of a rank other than the first: launchers signal every process, and the first one ends the others when all is saved.
void leave_stopping_to_the_first_rank();

const std::atomic<bool>& stop_requested();

/// A descriptor that can be read from once stop_requested(): to wait for it beside others.
int stop_event();

}  // namespace cotune
