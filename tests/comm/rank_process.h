/// Ranks that are processes: this test program, started again with a launcher's variables.
#pragma once

#include <sys/types.h>

#include <string>

#include "comm/launcher.h"

namespace cotune {

/// A process that plays `part` (rank_process.cc) with these variables beside those of this process. Killed when
/// dropped.
class RankProcess {
 public:
  RankProcess(const std::string& part, const Environment& launcher);
  ~RankProcess();
  RankProcess(const RankProcess&) = delete;
  RankProcess& operator=(const RankProcess&) = delete;

  /// The next line that begins with `> `, without it; "" where the process has closed its output. A line is waited for
  /// a minute and a half at most.
  std::string line();
  void kill();
  /// The exit status, or 128 + the signal. Where it is 1, what else the process wrote is shown.
  int exit_status();

 private:
  pid_t process_ = -1;
  int output_ = -1;
  std::string read_;
  std::string other_lines_;
};

}  // namespace cotune
