// Loaded by LD_PRELOAD, counts the process's changes to a file system (pipes and terminals do not count), and
// - ends the process by SIGKILL at change COTUNE_KILL_AT: a write ends in the middle, half of its bytes are in the file;
// - or lets the disk be full from change COTUNE_FULL_FROM on: the first write that meets it takes half of its bytes, all later
//   ones and whatever else needs room fail with ENOSPC; removing and shortening files goes on.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace {

template <typename F>
F* next(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

long number_from(const char* variable) {
  const char* const text = std::getenv(variable);
  return text != nullptr ? std::atol(text) : 0;
}

enum class Disk { has_room, fills_up, is_full };

/// The process ends here where this change is its last, after `half` of it.
template <typename F>
Disk at_this_change(const F& half) {
  static const long last = number_from("COTUNE_KILL_AT"), full = number_from("COTUNE_FULL_FROM");
  static std::atomic<long> count{0};
  const long change = ++count;
  if (change == last) {
    half();
    kill(getpid(), SIGKILL);
  }
  if (full == 0 || change < full) return Disk::has_room;
  return change == full ? Disk::fills_up : Disk::is_full;
}

Disk at_this_change() {
  return at_this_change([] {});
}

int no_room() {
  errno = ENOSPC;
  return -1;
}

bool is_file(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* bytes, size_t count) {
  static auto* const original = next<ssize_t(int, const void*, size_t)>("write");
  if (!is_file(descriptor)) return original(descriptor, bytes, count);
  const auto half = [&] { return original(descriptor, bytes, count / 2); };
  const Disk disk = at_this_change(half);
  if (disk == Disk::has_room) return original(descriptor, bytes, count);
  return disk == Disk::fills_up && count > 1 ? half() : no_room();
}

int fsync(int descriptor) {
  static auto* const original = next<int(int)>("fsync");
  return at_this_change() == Disk::has_room ? original(descriptor) : no_room();
}

int fdatasync(int descriptor) {
  static auto* const original = next<int(int)>("fdatasync");
  return at_this_change() == Disk::has_room ? original(descriptor) : no_room();
}

int open(const char* path, int flags, ...) {
  static auto* const original = next<int(const char*, int, ...)>("open");
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (at_this_change() != Disk::has_room && access(path, F_OK) != 0) return no_room();
  }
  return original(path, flags, mode);
}

int rename(const char* from, const char* to) {
  static auto* const original = next<int(const char*, const char*)>("rename");
  return at_this_change() == Disk::has_room ? original(from, to) : no_room();
}

int mkdir(const char* path, mode_t mode) {
  static auto* const original = next<int(const char*, mode_t)>("mkdir");
  return at_this_change() == Disk::has_room ? original(path, mode) : no_room();
}

int unlink(const char* path) {
  static auto* const original = next<int(const char*)>("unlink");
  at_this_change();
  return original(path);
}

int unlinkat(int folder, const char* path, int flags) {
  static auto* const original = next<int(int, const char*, int)>("unlinkat");
  at_this_change();
  return original(folder, path, flags);
}

int ftruncate(int descriptor, off_t length) {
  static auto* const original = next<int(int, off_t)>("ftruncate");
  at_this_change();
  return original(descriptor, length);
}

}  // extern "C"
