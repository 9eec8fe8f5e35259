#include "base/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <span>
#include <utility>

#include "base/abrupt_exit.h"
#include "base/atomic_file.h"
#include "base/bus_error.h"
#include "base/descriptor.h"
#include "base/error.h"
#include "base/running_checksum.h"

namespace cotune {
namespace {

/// The maps that are alive, for the handler of bus errors, which may neither allocate nor lock.
struct MapEntry {
  std::atomic<const std::byte*> begin{nullptr};
  size_t size = 0;
  char message[1024] = {};
};
MapEntry map_entries[256];  // a run has fewer files; more are not named
const std::byte* const reserved = reinterpret_cast<const std::byte*>(&map_entries);

void enter_map(const std::byte* data, size_t size, const std::filesystem::path& path) {
  for (MapEntry& entry : map_entries) {
    const std::byte* free = nullptr;
    if (!entry.begin.compare_exchange_strong(free, reserved)) continue;
    entry.size = size;
    std::snprintf(entry.message, sizeof entry.message, "%s: cannot be read any more: it was truncated, or its disk failed\n",
                  path.c_str());
    entry.begin = data;
    return;
  }
}

void leave_map(const std::byte* data) {
  for (MapEntry& entry : map_entries) {
    const std::byte* expected = data;
    if (entry.begin.compare_exchange_strong(expected, nullptr)) return;
  }
}

extern "C" void on_bus_error(int number, siginfo_t* info, void*) {
  const auto* address = static_cast<const std::byte*>(info->si_addr);
  for (const MapEntry& entry : map_entries) {
    const std::byte* begin = entry.begin;
    if (begin == nullptr || begin == reserved || address < begin || address >= begin + entry.size) continue;
    before_sudden_end();
    write_to_standard_error(entry.message);
    ::_exit(1);
  }
  before_sudden_end();
  std::signal(number, SIG_DFL);
  std::raise(number);  // delivered when this returns
}

[[noreturn]] void throw_system_error(const char* action, const std::filesystem::path& path) {
  throw SystemError(fmt::format("{}: cannot {}: {}", path.string(), action, std::strerror(errno)));
}

}  // namespace

void read_file_in_pieces(const std::filesystem::path& path, const TakeBytes& take) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw_user_error("{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) throw_user_error("{}: cannot read: {}", path.string(), std::strerror(errno));
  const bool may_be_endless = !S_ISREG(status.st_mode);
  uint64_t given = 0;
  std::array<char, 1 << 16> buffer{};
  while (true) {
    const ssize_t count = ::read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_user_error("{}: cannot read: {}", path.string(), std::strerror(errno));
    if (count == 0) return;
    given += static_cast<uint64_t>(count);
    take({buffer.data(), static_cast<size_t>(count)});
    if (may_be_endless && given > (uint64_t{64} << 20)) {
      throw_user_error("{}: is not a regular file and gives more than 64 MiB", path.string());
    }
  }
}

std::string read_file(const std::filesystem::path& path) {
  std::string bytes;
  std::error_code error;
  if (const uintmax_t size = std::filesystem::file_size(path, error); !error) bytes.reserve(size);
  read_file_in_pieces(path, [&](std::string_view piece) { bytes.append(piece); });
  return bytes;
}

std::function<void()>& file_change_watch() {
  static std::function<void()> watch;
  return watch;
}

void write_file_atomically(const std::filesystem::path& path, std::string_view bytes) {
  AtomicFile file(path);
  file.append(bytes);
  file.commit();
}

void copy_file_atomically(const std::filesystem::path& from, const std::filesystem::path& to) {
  AtomicFile file(to);
  read_file_in_pieces(from, [&](std::string_view piece) { file.append(piece); });
  file.commit();
}

void sync_folder(const std::filesystem::path& folder) {
  const Descriptor directory(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (directory.get() < 0 && errno == EACCES) return;  // may be written, but not read
  if (directory.get() >= 0 && (sync_to_disk(directory.get()) || errno == EINVAL || errno == ENOTSUP)) return;
  throw_system_error("sync", folder);
}

std::string checksum(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return fmt::format("{:016x}{:016x}", hash.high64, hash.low64);
}

std::string checksum_of_file(const std::filesystem::path& path) {
  RunningChecksum checksum;
  read_file_in_pieces(path, [&](std::string_view piece) { checksum.add(std::as_bytes(std::span(piece))); });
  return checksum.text();
}

void report_bus_errors() {
  struct sigaction action{};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &action, nullptr);
}

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) throw_user_error("{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) throw_user_error("{}: cannot read: {}", path.string(), std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw_user_error("{}: is not a regular file", path.string());
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;
  void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (address == MAP_FAILED) throw_user_error("{}: cannot map: {}", path.string(), std::strerror(errno));
  data_ = static_cast<const std::byte*>(address);
  enter_map(data_, size_, path);
}

void MappedFile::drop_pages() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_DONTNEED);
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  leave_map(data_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace cotune
