#include "base/appended_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/descriptor.h"
#include "base/error.h"

namespace cotune {
namespace {

[[noreturn]] void throw_system_error(const std::filesystem::path& path, const char* action) {
  throw SystemError(fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(errno)));
}

}  // namespace

AppendedFile::AppendedFile(std::filesystem::path path, bool append, uint32_t mode)
    : path_(std::move(path)),
      descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (append ? O_APPEND : O_TRUNC), mode)) {
  if (descriptor_ < 0) throw_system_error(path_, "open");
}

AppendedFile::~AppendedFile() { ::close(descriptor_); }

void AppendedFile::write(std::string_view bytes) {
  for (std::string_view rest = bytes; !rest.empty();) {  // not write_all: what was written of a line is taken back
    const ssize_t count = ::write(descriptor_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int reason = errno;
      const off_t end = ::lseek(descriptor_, 0, SEEK_CUR);
      const auto written = static_cast<off_t>(bytes.size() - rest.size());
      if (written > 0 && end >= written) [[maybe_unused]] const int shortened = ::ftruncate(descriptor_, end - written);
      errno = reason;
      throw_system_error(path_, "write");
    }
    rest.remove_prefix(static_cast<size_t>(count));
  }
}

void AppendedFile::sync() {
  if (!sync_to_disk(descriptor_) && errno != EINVAL) throw_system_error(path_, "write");
}

}  // namespace cotune
