#pragma once

#include <filesystem>
#include <string>

#include "control/protocol.h"
#include "control/socket.h"

namespace cotune {

/// One connection to a run's control socket.
class ControlClient {
 public:
  /// Throws as connect_to does.
  explicit ControlClient(std::filesystem::path run);

  /// Sends a request and waits for its reply, however long the run takes. line: the reply as it came, where wanted. Throws
  /// SystemError where the run ends before it has answered, UserError for a reply of another version.
  ControlReply ask(const ControlRequest& request, std::string* line = nullptr);

  /// Has a request that another thread waits for fail, and every further one.
  void hang_up();

 private:
  std::string read_line();

  std::filesystem::path run_;
  Descriptor connection_;
  std::string input_;
};

}  // namespace cotune
