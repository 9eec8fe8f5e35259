#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace cotune {

/// A file that grows by whole records.
class AppendedFile {
 public:
  /// append: goes on at the end of a file that is there; else it begins empty. mode: of a new file, less the process's umask. Throws
  /// SystemError when it cannot be opened.
  AppendedFile(std::filesystem::path path, bool append, uint32_t mode = 0644);
  ~AppendedFile();
  AppendedFile(const AppendedFile&) = delete;
  AppendedFile& operator=(const AppendedFile&) = delete;

  /// At once: what was written outlives the process. Where the disk is full no part of it is left, as far as the system allows.
  /// Throws SystemError.
  void write(std::string_view bytes);
  /// Returns when what was written outlives a power cut. Throws SystemError.
  void sync();

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

}  // namespace cotune
