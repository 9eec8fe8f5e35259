/// Stopping while the program still loads.
#pragma once

#include <string_view>

namespace cotune {

inline constexpr std::string_view stopped_before_training = "stopped before training began; nothing was changed\n";
inline constexpr int stopped_exit_code = 130;  ///< of every command that a signal stopped

/// From here on SIGINT, SIGTERM and SIGHUP (unless the parent ignores it: nohup) say stopped_before_training and end the program with
/// stopped_exit_code: for commands that train, whose libraries load for a while. catch_stop_signals (cli/terminal/stop_signals.h) takes
/// over.
void catch_early_stops();

}  // namespace cotune
