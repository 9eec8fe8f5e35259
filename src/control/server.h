#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <thread>

#include "control/protocol.h"
#include "control/socket.h"

namespace cotune {

/// What one side may take up.
struct ControlLimits {
  size_t connections = 64;            ///< at once; beyond them the one that has been silent longest is closed
  size_t line_bytes = size_t{4} << 20;  ///< of a request
};

/// Listens at a run's control socket on a thread of its own, and never waits for a client: one that is slow, stops in the
/// middle of a line or never reads its reply holds up nobody but itself. Of one connection one request is under way at a time;
/// replies come in the order of requests. A request is carried out whether or not its client is still there.
class ControlServer {
 public:
  /// Gives the reply: once, from any thread, also after the server has ended (it then goes nowhere).
  using Answer = std::function<void(const ControlReply&)>;
  /// Called on the server's thread for every request that could be read; must not wait.
  using Handler = std::function<void(ControlRequest, Answer)>;

  /// Throws SystemError: the socket cannot be made (listen_at).
  ControlServer(std::filesystem::path run, Handler handler, ControlLimits limits = {});
  /// Sends replies that have been given, as far as clients take them now, and removes the socket.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

 private:
  class Loop;
  std::filesystem::path run_;
  std::unique_ptr<Loop> loop_;
  SocketFile file_;
  std::thread thread_;
};

}  // namespace cotune
