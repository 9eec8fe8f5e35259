#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
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

  /// As ask(), but nothing where the run has not answered by then: the next call of either waits on for the reply, and must ask for the same.
  std::optional<ControlReply> ask_within(std::chrono::milliseconds patience, const ControlRequest& request, std::string* line = nullptr);

  /// Has a request that another thread waits for fail, and every further one.
  void hang_up();

 private:
  std::optional<ControlReply> answer(const ControlRequest& request, std::string* line, std::optional<std::chrono::steady_clock::time_point> deadline);
  void send(const ControlRequest& request);
  /// Up to the next line's end. Returns whether it came before the deadline, where there is one.
  bool read_line(std::string& line, std::optional<std::chrono::steady_clock::time_point> deadline = {});

  std::filesystem::path run_;
  Descriptor connection_;
  std::string input_;
  bool is_owed_ = false;  ///< it was asked, and no reply came yet
};

}  // namespace cotune
