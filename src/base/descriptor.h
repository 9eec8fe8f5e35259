/// File descriptors of POSIX, and what the system calls leave to their callers: interruptions by signals and short writes.
#pragma once

#include <string_view>

namespace cotune {

/// A file descriptor that is closed with this.
class Descriptor {
 public:
  /// -1: none.
  explicit Descriptor(int descriptor = -1) : descriptor_(descriptor) {}
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept : descriptor_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  int get() const { return descriptor_; }
  /// Gives it away, open.
  int release();

 private:
  int descriptor_;
};

/// All of the bytes, whatever signals come meanwhile. False, with errno, where they cannot be written; some of them may be then. May be called
/// by a handler of signals.
bool write_all(int descriptor, std::string_view bytes) noexcept;

/// fsync, whatever signals come meanwhile. False, with errno.
bool sync_to_disk(int descriptor) noexcept;

}  // namespace cotune
