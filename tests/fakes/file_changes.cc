// Loaded by LD_PRELOAD: ends the process by SIGKILL at its COTUNE_KILL_AT-th change to a file system. A write ends in the
// middle: half of its bytes are in the file. Pipes and terminals do not count.

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

/// Whether this change is the one that the process does not survive.
bool is_the_last() {
  static const long last = std::getenv("COTUNE_KILL_AT") != nullptr ? std::atol(std::getenv("COTUNE_KILL_AT")) : 0;
  static std::atomic<long> count{0};
  return ++count == last;
}

void die() { kill(getpid(), SIGKILL); }

bool is_file(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && (S_ISREG(status.st_mode) || S_ISDIR(status.st_mode));
}

}  // namespace

extern "C" {

ssize_t write(int descriptor, const void* bytes, size_t count) {
  static auto* const original = next<ssize_t(int, const void*, size_t)>("write");
  if (!is_file(descriptor) || !is_the_last()) return original(descriptor, bytes, count);
  original(descriptor, bytes, count / 2);
  die();
  return -1;
}

int fsync(int descriptor) {
  static auto* const original = next<int(int)>("fsync");
  if (is_the_last()) die();
  return original(descriptor);
}

int open(const char* path, int flags, ...) {
  static auto* const original = next<int(const char*, int, ...)>("open");
  mode_t mode = 0;
  if ((flags & O_CREAT) != 0) {
    va_list arguments;
    va_start(arguments, flags);
    mode = va_arg(arguments, mode_t);
    va_end(arguments);
    if (is_the_last()) die();
  }
  return original(path, flags, mode);
}

int rename(const char* from, const char* to) {
  static auto* const original = next<int(const char*, const char*)>("rename");
  if (is_the_last()) die();
  return original(from, to);
}

int mkdir(const char* path, mode_t mode) {
  static auto* const original = next<int(const char*, mode_t)>("mkdir");
  if (is_the_last()) die();
  return original(path, mode);
}

int unlink(const char* path) {
  static auto* const original = next<int(const char*)>("unlink");
  if (is_the_last()) die();
  return original(path);
}

int unlinkat(int folder, const char* path, int flags) {
  static auto* const original = next<int(int, const char*, int)>("unlinkat");
  if (is_the_last()) die();
  return original(folder, path, flags);
}

int ftruncate(int descriptor, off_t length) {
  static auto* const original = next<int(int, off_t)>("ftruncate");
  if (is_the_last()) die();
  return original(descriptor, length);
}

}  // extern "C"
