/// A file written piece by piece that appears whole or not at all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>

namespace cotune {

inline constexpr uint32_t everybody_reads = 0644;

/// Writes into a temporary file in the same folder, which commit() moves to its name; without it the temporary is removed and an
/// old file of that name stays as it was. The new one has the old one's permissions, and takes the place of a symbolic link, not of what it leads
/// to (where_link_leads). Several at once may write files of one name, in this process and in others: the last one
/// to commit wins.
class AtomicFile {
 public:
  /// mode: of a file that was not there, less the process's umask; unless it is the default, of an old one's permissions no more than
  /// these are kept. Throws SystemError naming the file where it cannot be created; so do the
  /// other calls where the disk refuses them.
  explicit AtomicFile(std::filesystem::path path, uint32_t mode = everybody_reads);
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

/// Where a symbolic link leads, for files that users name and expect to find there; the path itself where it is none, or one of a circle.
/// Nothing need be there yet.
std::filesystem::path where_link_leads(const std::filesystem::path& path);

/// Whether the name is one of an AtomicFile's temporary files, NAME.PID.part or NAME.NUMBER.PID.part: one that is there while nothing writes
/// into the folder was left by a process that was killed.
bool is_temporary_file(const std::filesystem::path& path);
/// Whether it is one for a file of such a NAME.
bool is_temporary_of(const std::filesystem::path& path, const std::function<bool(const std::filesystem::path&)>& is_target);

/// Removes the temporary file (is_temporary_file) of an AtomicFile that no process writes any more; whether it did.
bool remove_abandoned(const std::filesystem::path& temporary);

/// Removes the temporary files that this process is writing: it is about to end without unwinding. May be called by a handler of
/// signals, on any thread.
void remove_unfinished_files() noexcept;

}  // namespace cotune
