#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"

namespace cotune {
namespace {

constexpr const char* temporary_suffix = ".part";

[[noreturn]] void fail(const char* action, const std::filesystem::path& path) {
  throw SystemError(fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(errno)));
}

void report_change() {
  if (file_change_watch()) file_change_watch()();
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path) : path_(std::move(path)), temporary_(path_) {
  temporary_ += fmt::format(".{}{}", ::getpid(), temporary_suffix);
  report_change();
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail("create", temporary_);
  report_change();
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::close(descriptor_);
  ::unlink(temporary_.c_str());
}

void AtomicFile::append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", path_);
    bytes.remove_prefix(static_cast<size_t>(count));
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail("write", path_);
  report_change();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("replace", path_);
  ::close(descriptor_);
  descriptor_ = -1;
  report_change();
  sync_folder(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
}

bool is_temporary_file(const std::filesystem::path& path) {
  const std::filesystem::path stem = path.stem();  // NAME.PID
  const std::string pid = stem.extension().string();
  return path.extension() == temporary_suffix && pid.size() > 1 && pid.find_first_not_of("0123456789", 1) == pid.npos;
}

}  // namespace cotune
