#include "base/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/descriptor.h"
#include "base/error.h"
#include "base/file.h"

namespace cotune {
namespace {

constexpr const char* temporary_suffix = ".part";
constexpr int most_links = 40;  // one after the other, as Linux follows them

/// What remove_unfinished_files() removes. Files beyond these places, or with longer names, are left to remove_abandoned().
struct UnfinishedFile {
  enum State { is_free, is_being_set, is_set };
  std::atomic<State> state = is_free;
  std::array<char, 1024> path{};
};
static_assert(std::atomic<UnfinishedFile::State>::is_always_lock_free);
std::array<UnfinishedFile, 64> unfinished_files;

void enter_unfinished(const std::string& path) {
  for (UnfinishedFile& file : unfinished_files) {
    UnfinishedFile::State expected = UnfinishedFile::is_free;
    if (path.size() >= file.path.size() || !file.state.compare_exchange_strong(expected, UnfinishedFile::is_being_set)) continue;
    std::memcpy(file.path.data(), path.c_str(), path.size() + 1);
    file.state = UnfinishedFile::is_set;
    return;
  }
}

void leave_unfinished(const std::string& path) {
  for (UnfinishedFile& file : unfinished_files) {
    if (file.state == UnfinishedFile::is_set && path == file.path.data()) file.state = UnfinishedFile::is_free;
  }
}

[[noreturn]] void fail(const char* action, const std::filesystem::path& path) {
  throw SystemError(fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(errno)));
}

void report_change() {
  if (file_change_watch()) file_change_watch()();
}

/// Locks the open file for its writer: false where it has another one, or was renamed or removed meanwhile. File systems without locks
/// have none.
bool is_ours_alone(int descriptor, const std::filesystem::path& path) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return false;
  struct stat opened{}, named{};
  return ::fstat(descriptor, &opened) == 0 && ::stat(path.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

/// `.123`
bool is_number(std::string_view extension) {
  return extension.size() > 1 && extension.find_first_not_of("0123456789", 1) == extension.npos;
}

}  // namespace

std::filesystem::path where_link_leads(const std::filesystem::path& path) {
  std::filesystem::path followed = path;
  std::error_code error;
  for (int links = 0; std::filesystem::is_symlink(followed, error); ++links) {
    const std::filesystem::path target = std::filesystem::read_symlink(followed, error);
    if (error || links == most_links) return path;
    followed = followed.parent_path() / target;  // the target alone where it is absolute
  }
  return followed;
}

AtomicFile::AtomicFile(std::filesystem::path path, uint32_t mode) : path_(std::move(path)) {
  report_change();
  open(mode);
  report_change();
}

void AtomicFile::open(uint32_t mode) {
  for (int attempt = 0;; ++attempt) {
    temporary_ = path_;
    if (attempt > 0) temporary_ += fmt::format(".{}", attempt);  // of another thread, or of a process of another container
    temporary_ += fmt::format(".{}{}", ::getpid(), temporary_suffix);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, mode);
    if (descriptor_ < 0) fail("create", path_);
    if (is_ours_alone(descriptor_, temporary_)) break;
    ::close(descriptor_);
  }
  struct stat status{}, old{};
  if (::fstat(descriptor_, &status) == 0 && status.st_size > 0 && ::ftruncate(descriptor_, 0) != 0) {  // left by one that was killed
    ::close(descriptor_);
    fail("shorten", temporary_);
  }
  if (::lstat(path_.c_str(), &old) == 0 && S_ISREG(old.st_mode)) {
    const mode_t kept = old.st_mode & (mode == everybody_reads ? 0777 : mode);
    [[maybe_unused]] const int changed = ::fchmod(descriptor_, kept);  // file systems without permissions refuse
  }
  enter_unfinished(temporary_);
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::unlink(temporary_.c_str());  // while it is locked: then it can be another's
  leave_unfinished(temporary_);
  ::close(descriptor_);
}

void AtomicFile::append(std::string_view bytes) {
  if (!write_all(descriptor_, bytes)) fail("write", path_);
}

void AtomicFile::overwrite(int64_t offset, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pwrite(descriptor_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("write", path_);
    bytes.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
}

void AtomicFile::commit() {
  if (!sync_to_disk(descriptor_)) fail("write", path_);
  report_change();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("replace", path_);
  leave_unfinished(temporary_);
  ::close(descriptor_);
  descriptor_ = -1;
  report_change();
  sync_folder(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
}

void remove_unfinished_files() noexcept {
  for (UnfinishedFile& file : unfinished_files) {
    if (file.state == UnfinishedFile::is_set) ::unlink(file.path.data());
  }
}

bool remove_abandoned(const std::filesystem::path& temporary) {
  const int descriptor = ::open(temporary.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (descriptor < 0) return false;
  const bool removed = ::flock(descriptor, LOCK_EX | LOCK_NB) == 0 && ::unlink(temporary.c_str()) == 0;
  ::close(descriptor);
  return removed;
}

bool is_temporary_file(const std::filesystem::path& path) {
  return path.extension() == temporary_suffix && is_number(path.stem().extension().string());
}

bool is_temporary_of(const std::filesystem::path& path, const std::function<bool(const std::filesystem::path&)>& is_target) {
  if (!is_temporary_file(path)) return false;
  const std::filesystem::path name = path.stem().stem();
  return is_target(name) || (is_number(name.extension().string()) && is_target(name.stem()));
}

}  // namespace cotune
