#include "base/file_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace cotune {

FileLock::FileLock(const std::filesystem::path& path, File file) {
  const bool made = file == File::made_now;
  descriptor_ = ::open(path.c_str(), (made ? O_RDWR | O_CREAT | O_EXCL : O_RDONLY | O_NONBLOCK) | O_CLOEXEC, 0644);
  if (descriptor_ < 0 && made && errno == EEXIST) throw_user_error("{}: another process has made it meanwhile", path.string());
  if (descriptor_ < 0) throw SystemError(fmt::format("{}: cannot {}: {}", path.string(), made ? "create" : "open", std::strerror(errno)));
  struct stat opened{}, named{};
  if (::fstat(descriptor_, &opened) == 0 && !S_ISREG(opened.st_mode)) return;
  const bool held = ::flock(descriptor_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  const bool replaced = ::stat(path.c_str(), &named) != 0 || opened.st_dev != named.st_dev || opened.st_ino != named.st_ino;
  if (!held && !replaced) return;
  ::close(descriptor_);
  throw_user_error("{}: another process is writing it", path.string());
}

FileLock::~FileLock() { ::close(descriptor_); }

}  // namespace cotune
