#include "control/socket.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/shell_quoted.h"
#include "control/no_run.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr const char* socket_name = "control.sock";
constexpr const char* new_socket_name = "control.sock.new";  // until it can be connected to
constexpr int waiting_connections = 64;

/// The socket's address, with the folder that it may go through, open as long as this lives.
struct SocketAddress {
  Descriptor folder;
  sockaddr_un address{};
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

/// Of a socket in the run's folder. Throws SystemError where the folder cannot be opened, or the path is too long and there is no
/// /proc.
SocketAddress address_of(const fs::path& run, const char* name) {
  SocketAddress result;
  result.address.sun_family = AF_UNIX;
  std::string path = (run / name).string();
  constexpr size_t most = sizeof result.address.sun_path - 1;
  if (path.size() > most) {
    result.folder = Descriptor(::open(run.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (result.folder.get() < 0) throw SystemError(fmt::format("{}: cannot be opened: {}", run.string(), std::strerror(errno)));
    const std::string folder = fmt::format("/proc/self/fd/{}", result.folder.get());
    if (::access(folder.c_str(), X_OK) != 0) {
      throw SystemError(fmt::format("{}: has {} bytes, a socket's path at most {}, and there is no /proc to reach it by: choose an "
                                    "output folder with a shorter path", path, path.size(), most));
    }
    path = folder + "/" + name;
  }
  std::memcpy(result.address.sun_path, path.c_str(), path.size() + 1);
  return result;
}

[[noreturn]] void throw_cannot(const fs::path& run, const char* what) {
  throw SystemError(fmt::format("{}: cannot {}: {}", control_socket(run).string(), what, std::strerror(errno)));
}

}  // namespace

fs::path control_socket(const fs::path& run) { return run / socket_name; }

Descriptor listen_at(const fs::path& run) {
  const fs::path file = control_socket(run), before = run / new_socket_name;
  const SocketAddress address = address_of(run, new_socket_name);
  Descriptor listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (listener.get() < 0) throw_cannot(run, "make a socket");
  // The file takes the open socket's mode: it is never there with another one.
  if (::fchmod(listener.get(), 0600) != 0) throw_cannot(run, "set its mode");
  ::unlink(before.c_str());  // of a process that was killed just then; what cannot be removed stands in the way of bind
  if (::bind(listener.get(), address.get(), sizeof address.address) != 0) throw_cannot(run, "make it");
  if (::listen(listener.get(), waiting_connections) == 0 && ::rename(before.c_str(), file.c_str()) == 0) return listener;
  const int reason = errno;
  ::unlink(before.c_str());
  errno = reason;
  throw_cannot(run, "put it there");
}

SocketFile socket_file(const fs::path& run) {
  struct stat status {};
  if (::lstat(control_socket(run).c_str(), &status) != 0) return {};
  return {.device = status.st_dev, .inode = status.st_ino};
}

void remove_socket(const fs::path& run, const SocketFile& own) {
  if (socket_file(run) == own) ::unlink(control_socket(run).c_str());
}

Descriptor connect_to(const fs::path& run) {
  const fs::path file = control_socket(run);
  if (!fs::is_directory(run)) throw_no_run(run);
  const SocketAddress address = address_of(run, socket_name);
  Descriptor connection(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connection.get() < 0) throw_cannot(run, "make a socket");
  const timeval patience{.tv_sec = 2, .tv_usec = 0}, endless{};
  ::setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  int status = 0;
  do {
    status = ::connect(connection.get(), address.get(), sizeof address.address);
  } while (status != 0 && errno == EINTR);
  const int reason = errno;
  ::setsockopt(connection.get(), SOL_SOCKET, SO_SNDTIMEO, &endless, sizeof endless);
  if (status == 0) return connection;
  if (reason == EAGAIN) throw SystemError(fmt::format("{}: the run's process does not answer", file.string()));
  if (reason == ENOENT || reason == ECONNREFUSED) {
    if (!holds_run(run)) throw_no_run(run);
    throw CannotBeAsked(fmt::format("{}: nobody listens: no process trains in this folder, or it is still loading its model, or on another machine. "
                                    "`cotune train JOBS_FILE --resume --output-dir {}` goes on with a run that has stopped",
                                    file.string(), shell_quoted(run.string())));
  }
  if (reason == EACCES) {
    throw CannotBeAsked(fmt::format("{}: cannot connect: {}: a run is changed by the user who trains it; `cotune status --run {}` reads its files",
                                    file.string(), std::strerror(reason), shell_quoted(run.string())));
  }
  throw_user_error("{}: cannot connect: {}", file.string(), std::strerror(reason));
}

}  // namespace cotune
