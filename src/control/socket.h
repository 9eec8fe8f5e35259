/// The control socket of a run: RUN/control.sock. Paths may be longer than a socket's address holds (108 bytes): they are then
/// reached through /proc/self/fd.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/descriptor.h"
#include "base/error.h"

namespace cotune {

std::filesystem::path control_socket(const std::filesystem::path& run);

/// Listens at the run's socket, which its owner alone may open (mode 0600); one that a killed process has left is replaced:
/// call it only while holding the run's folder. The file is there once it can be connected to. Not blocking. Throws SystemError naming the file.
Descriptor listen_at(const std::filesystem::path& run);

/// Which file a run's socket is: another run that took the folder over has another one there.
struct SocketFile {
  uint64_t device = 0, inode = 0;
  bool operator==(const SocketFile&) const = default;
};
/// Of the file that is there; {} where there is none.
SocketFile socket_file(const std::filesystem::path& run);
/// Removes the file where it is still this one; what cannot be removed is replaced by the next run.
void remove_socket(const std::filesystem::path& run, const SocketFile& own);

/// Nobody listens at a run's socket, or it is another user's: what there is to know of the run stands in its files.
class CannotBeAsked : public UserError {
 public:
  using UserError::UserError;
};

/// Blocking, but for connecting, which takes two seconds at most. Throws CannotBeAsked, with what to do about it; UserError where there is no
/// run, as throw_no_run; SystemError where so many wait already that the run accepts no more.
Descriptor connect_to(const std::filesystem::path& run);

}  // namespace cotune
