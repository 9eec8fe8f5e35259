#pragma once

#include <functional>

namespace cotune {

/// From here on the next Ctrl-C (SIGINT; SIGTERM and SIGHUP too) sets interrupted(), and one more (StopRequest::repeated) ends the program,
/// without files that are not whole (remove_unfinished_files).
/// Called again it forgets a Ctrl-C, and nothing else: asked_to_end() stays.
void catch_interruption();
bool interrupted();

/// SIGTERM or SIGHUP has come: not what is under way is to end, but the program.
bool asked_to_end();

/// Waits until something can be read from the descriptor, or its end; false where interrupted() came first. when_woken: called after
/// wake_input().
bool wait_for_input(int descriptor, const std::function<void()>& when_woken = nullptr);
/// For handlers of signals, which may run on any thread: who waits for input, or does so next, looks up.
void wake_input();

}  // namespace cotune
