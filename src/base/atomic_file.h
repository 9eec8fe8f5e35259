/// A file written piece by piece that appears whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

namespace cotune {

/// Writes into a temporary file in the same folder, which commit() moves to its name; without it the temporary is removed and an
/// old file of that name stays as it was. Several at once may write files of one name, in this process and in others: the last one
/// to commit wins.
class AtomicFile {
 public:
  /// mode: of the new file, less the process's umask. Throws SystemError naming the file where it cannot be created; so do the
  /// other calls where the disk refuses them.
  explicit AtomicFile(std::filesystem::path path, uint32_t mode = 0644);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::string_view bytes);
  /// Over bytes that were appended.
  void overwrite(int64_t offset, std::string_view bytes);
  /// fsync, rename, fsync of the folder.
  void commit();

  /// Where the bytes are until then.
  const std::filesystem::path& temporary() const { return temporary_; }

 private:
  void open(uint32_t mode);

  std::filesystem::path path_, temporary_;
  int descriptor_ = -1;
};

/// Removes the temporary file (is_temporary_file) of an AtomicFile that no process writes any more; whether it did.
bool remove_abandoned(const std::filesystem::path& temporary);

/// Removes the temporary files that this process is writing: it is about to end without unwinding. May be called by a handler of
/// signals, on any thread.
void remove_unfinished_files() noexcept;

}  // namespace cotune
