#include "control/server.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/error.h"

namespace cotune {
namespace {

void wake(const Descriptor& event) {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event.get(), &one, sizeof one);  // full: it is awake
}

bool is_for_later(int reason) { return reason == EAGAIN || reason == EWOULDBLOCK || reason == EINTR; }

}  // namespace

namespace control_server {  // what ControlServer::Loop is made of

/// Replies on their way to the server's thread.
class Outbox {
 public:
  struct Line {
    uint64_t connection = 0;
    std::string text;
  };

  Outbox() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (event_.get() < 0) throw SystemError(fmt::format("control socket: cannot make an event: {}", std::strerror(errno)));
  }

  void put(uint64_t connection, std::string text) {
    const std::lock_guard lock(mutex_);
    lines_.push_back({connection, std::move(text)});
    wake(event_);
  }

  void close() {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    wake(event_);
  }

  /// What there is, and whether the server is to end.
  std::pair<std::vector<Line>, bool> take() {
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(event_.get(), &count, sizeof count);
    const std::lock_guard lock(mutex_);
    return {std::exchange(lines_, {}), closing_};
  }

  int event() const { return event_.get(); }

 private:
  Descriptor event_;
  std::mutex mutex_;
  std::vector<Line> lines_;
  bool closing_ = false;
};

struct Connection {
  explicit Connection(Descriptor opened) : socket(std::move(opened)) {}
  Descriptor socket;
  std::string input, output;
  size_t searched = 0;       ///< of the input, without an end of line
  size_t sent = 0;           ///< of the output
  bool is_busy = false;      ///< a request is under way
  bool has_ended = false;    ///< the client sends nothing more
  bool closes = false;       ///< when the output is sent
  uint64_t last_used = 0;    ///< by the server's count of events

  bool reads() const { return !is_busy && output.empty() && !has_ended && !closes; }
  bool is_done() const { return output.empty() && !is_busy && (closes || has_ended); }
};

}  // namespace control_server

class ControlServer::Loop {
  using Outbox = control_server::Outbox;
  using Connection = control_server::Connection;

 public:
  Loop(Descriptor listener, Handler handler, ControlLimits limits)
      : listener_(std::move(listener)), handler_(std::move(handler)), limits_(limits), outbox_(std::make_shared<Outbox>()) {}

  void run() {
    while (true) {
      wait();
      const auto [lines, closing] = outbox_->take();
      for (const Outbox::Line& line : lines) deliver(line);
      if (closing) return;
      for (auto next = connections_.begin(); next != connections_.end();) {
        const auto current = next++;
        serve(current->first, current->second);
        if (current->second.is_done()) connections_.erase(current);
      }
      accept_all();
    }
  }

  void close() { outbox_->close(); }

 private:
  void wait() {
    polled_.clear();
    polled_.push_back({outbox_->event(), POLLIN, 0});
    polled_.push_back({listener_.get(), static_cast<short>(accepting_ ? POLLIN : 0), 0});
    for (auto& [id, connection] : connections_) {
      const auto events = static_cast<short>((connection.reads() ? POLLIN : 0) | (connection.output.empty() ? 0 : POLLOUT));
      // One that has nothing to say and hangs up would wake the loop again and again.
      polled_.push_back({events == 0 ? -1 : connection.socket.get(), events, 0});
    }
    constexpr int again_ms = 1000;  // descriptors were short: some may have been closed since
    ::poll(polled_.data(), polled_.size(), accepting_ ? -1 : again_ms);
    accepting_ = true;
  }

  void deliver(const Outbox::Line& line) {
    const auto found = connections_.find(line.connection);
    if (found == connections_.end()) return;
    found->second.is_busy = false;
    found->second.output += line.text + "\n";
    send(found->second);
  }

  void serve(uint64_t id, Connection& connection) {
    if (!connection.output.empty()) send(connection);
    take_lines(id, connection);
    if (!connection.reads()) return;  // else there is no whole line left
    receive(connection);
    take_lines(id, connection);
  }

  void take_lines(uint64_t id, Connection& connection) {
    while (!connection.is_busy && !connection.closes && connection.output.empty()) {
      if (!take_line(id, connection)) return;
    }
  }

  void receive(Connection& connection) {
    char bytes[1 << 16];
    // No more than this at a time: others have their turn.
    const ssize_t count = ::recv(connection.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (count < 0 && is_for_later(errno)) return;
    if (count <= 0) {
      connection.has_ended = true;
      connection.closes = connection.closes || count < 0;
      return;
    }
    connection.input.append(bytes, static_cast<size_t>(count));
    connection.last_used = ++events_;
  }

  /// Takes one line of the input, if there is one; returns whether there was.
  bool take_line(uint64_t id, Connection& connection) {
    const size_t end = connection.input.find('\n', connection.searched);
    if (std::min(end, connection.input.size()) > limits_.line_bytes) {
      connection.input.clear();
      connection.closes = true;
      reply_at_once(connection, {ControlErrorCode::too_long,
                                 fmt::format("request: is longer than {} bytes; the connection is closed", limits_.line_bytes), {}}, "");
      return false;
    }
    if (end == std::string::npos) {
      connection.searched = connection.input.size();
      return false;
    }
    const std::string line = connection.input.substr(0, end);
    connection.input.erase(0, end + 1);
    connection.searched = 0;
    connection.last_used = ++events_;
    try {
      ControlRequest request = parse_request(line);
      connection.is_busy = true;
      handler_(std::move(request), [outbox = outbox_, id, request_id = request.id](const ControlReply& reply) {
        outbox->put(id, to_line(reply, request_id));
      });
    } catch (const BadRequest& error) {
      reply_at_once(connection, {ControlErrorCode::bad_request, error.what(), {}}, error.id());
    }
    return true;
  }

  static void reply_at_once(Connection& connection, ControlError error, const std::string& id) {
    ControlReply reply;
    reply.error = std::move(error);
    connection.output += to_line(reply, id) + "\n";
    send(connection);
  }

  static void send(Connection& connection) {
    std::string& output = connection.output;
    while (!output.empty()) {
      const ssize_t count = ::send(connection.socket.get(), output.data() + connection.sent, output.size() - connection.sent,
                                   MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && is_for_later(errno)) return;
      if (count < 0) connection.closes = true;  // the client is gone
      if (count >= 0) connection.sent += static_cast<size_t>(count);
      if (count >= 0 && connection.sent < output.size()) continue;
      output.clear();
      connection.sent = 0;
    }
  }

  void accept_all() {
    while (true) {
      const int opened = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (opened < 0 && (errno == EINTR || errno == ECONNABORTED)) continue;
      if (opened < 0) {
        accepting_ = is_for_later(errno);
        return;
      }
      if (connections_.size() >= limits_.connections) close_the_most_silent();
      const auto [added, is_new] = connections_.emplace(++connection_count_, Connection(Descriptor(opened)));
      added->second.last_used = ++events_;
    }
  }

  void close_the_most_silent() {
    // One whose request is under way may be silent.
    const auto rank = [](const auto& item) { return std::pair(item.second.is_busy, item.second.last_used); };
    connections_.erase(std::min_element(connections_.begin(), connections_.end(),
                                        [&](const auto& a, const auto& b) { return rank(a) < rank(b); }));
  }

  Descriptor listener_;
  Handler handler_;
  ControlLimits limits_;
  std::shared_ptr<Outbox> outbox_;
  std::map<uint64_t, Connection> connections_;
  std::vector<pollfd> polled_;
  uint64_t connection_count_ = 0, events_ = 0;
  bool accepting_ = true;
};

ControlServer::ControlServer(std::filesystem::path run, Handler handler, ControlLimits limits)
    : run_(std::move(run)), loop_(std::make_unique<Loop>(listen_at(run_), std::move(handler), limits)), file_(socket_file(run_)) {
  thread_ = std::thread([this] { loop_->run(); });
}

ControlServer::~ControlServer() {
  loop_->close();
  thread_.join();
  remove_socket(run_, file_);
}

}  // namespace cotune
