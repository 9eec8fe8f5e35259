#include "control/client.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace cotune {
namespace {

/// After the run was asked, and before it answered.
[[noreturn]] void throw_lost(const std::filesystem::path& run, const std::string& reason) {
  throw SystemError(fmt::format("{}: the run has ended, or its connection, before it answered ({}): whether it did what was asked "
                                "is not known", control_socket(run).string(), reason));
}

}  // namespace

ControlClient::ControlClient(std::filesystem::path run) : run_(std::move(run)), connection_(connect_to(run_)) {}

ControlReply ControlClient::ask(const ControlRequest& request, std::string* line) { return *answer(request, line, std::nullopt); }

std::optional<ControlReply> ControlClient::ask_within(std::chrono::milliseconds patience, const ControlRequest& request, std::string* line) {
  return answer(request, line, std::chrono::steady_clock::now() + patience);
}

std::optional<ControlReply> ControlClient::answer(const ControlRequest& request, std::string* line,
                                                  std::optional<std::chrono::steady_clock::time_point> deadline) {
  if (!is_owed_) send(request);
  is_owed_ = true;
  std::string reply;
  if (!read_line(reply, deadline)) return std::nullopt;
  is_owed_ = false;
  ControlReply read = parse_reply(reply);
  if (line != nullptr) *line = std::move(reply);
  return read;
}

void ControlClient::send(const ControlRequest& request) {
  const std::string text = to_line(request) + "\n";
  for (size_t sent = 0; sent < text.size();) {
    const ssize_t count = ::send(connection_.get(), text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) break;  // why it was closed may stand in a reply
    sent += static_cast<size_t>(count);
  }
}

void ControlClient::hang_up() { ::shutdown(connection_.get(), SHUT_RDWR); }

bool ControlClient::read_line(std::string& line, std::optional<std::chrono::steady_clock::time_point> deadline) {
  size_t searched = 0;
  while (true) {
    const size_t end = input_.find('\n', searched);
    if (end != std::string::npos) {
      line = input_.substr(0, end);
      input_.erase(0, end + 1);
      return true;
    }
    searched = input_.size();
    if (deadline) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - std::chrono::steady_clock::now()).count();
      pollfd event{connection_.get(), POLLIN, 0};
      const int ready = ::poll(&event, 1, static_cast<int>(std::max<int64_t>(0, left)));
      if (ready < 0 && errno == EINTR) continue;
      if (ready == 0) return false;
    }
    char bytes[1 << 16];
    const ssize_t count = ::recv(connection_.get(), bytes, sizeof bytes, 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_lost(run_, std::strerror(errno));
    if (count == 0) throw_lost(run_, "end of the connection");
    input_.append(bytes, static_cast<size_t>(count));
  }
}

}  // namespace cotune
