#pragma once

namespace cotune {

/// From here on the next Ctrl-C (SIGINT; SIGTERM and SIGHUP too) sets interrupted(), and one more ends the program. Reads of the terminal are
/// cut short by it.
void catch_interruption();
bool interrupted();

/// What a command exits with that was interrupted.
inline constexpr int interrupted_exit_code = 130;

}  // namespace cotune
