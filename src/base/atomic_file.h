/// A file written piece by piece that appears whole or not at all.
#pragma once

#include <filesystem>
#include <string_view>

namespace cotune {

/// Writes into a temporary file in the same folder, which commit() moves to its name; without it the temporary is removed and an
/// old file of that name stays as it was.
class AtomicFile {
 public:
  /// Throws SystemError naming the file where it cannot be created; so do the other calls where the disk refuses them.
  explicit AtomicFile(std::filesystem::path path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::string_view bytes);
  /// fsync, rename, fsync of the folder.
  void commit();

 private:
  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

}  // namespace cotune
