/// Files: read whole, mapped read-only, and written so that a crash leaves the old or the new content, never half.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace cotune {

using TakeBytes = std::function<void(std::string_view)>;

/// The file's bytes. Throws UserError naming the file when it cannot be read, and when a device or pipe gives more than
/// 64 MiB.
std::string read_file(const std::filesystem::path& path);
/// The same in pieces, so that no more than one of them is in memory.
void read_file_in_pieces(const std::filesystem::path& path, const TakeBytes& take);

/// Writes through an AtomicFile. Throws SystemError naming the file (disk full, no permission); the old file is then untouched and the
/// temporary removed.
void write_file_atomically(const std::filesystem::path& path, std::string_view bytes);
/// The same with the bytes of another file, in pieces.
void copy_file_atomically(const std::filesystem::path& from, const std::filesystem::path& to);

/// While it holds a function, write_file_atomically calls it before every change that it makes to the file system and
/// after the last: for tests that look at what a kill at that instant would leave.
std::function<void()>& file_change_watch();

/// fsyncs a folder, so that renames in it survive a power cut; where its file system, or its permissions, let nobody do that it is left alone.
/// Throws SystemError.
void sync_folder(const std::filesystem::path& folder);

/// XXH3-128 of the bytes, as 32 hexadecimal digits: guards checkpoints against damage (not against malice).
std::string checksum(std::string_view bytes);
/// The same of a file's, in pieces.
std::string checksum_of_file(const std::filesystem::path& path);

/// A read-only memory map of a whole file; unmapped on destruction. Movable, not copyable. An empty file gives an empty
/// span. Bytes stay valid while the object lives; the file must not be truncated meanwhile.
class MappedFile {
 public:
  /// Throws UserError naming the file when it cannot be opened or mapped.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }
  /// Lets go of the pages that were read: they no longer count as this process's memory, and come back from the file when
  /// they are read again.
  void drop_pages() const;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace cotune
