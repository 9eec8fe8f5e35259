#pragma once

#include <filesystem>

namespace cotune {

/// A file that is written by one process alone, for as long as this lives. File systems without locks have none, and so have devices and
/// pipes.
class FileLock {
 public:
  enum class File { there, made_now };
  /// there: the file exists. made_now: it is made, empty. Throws UserError naming the file where another process has it locked, or has made
  /// it meanwhile; SystemError where it cannot be opened or made.
  FileLock(const std::filesystem::path& path, File file);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

}  // namespace cotune
