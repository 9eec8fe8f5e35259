/// What a data file holds, as a checksum.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace cotune {

/// What changes when a file does: its place on disk, size and times of change.
struct FileStamp {
  uint64_t device = 0, inode = 0, bytes = 0;
  int64_t modified_ns = 0, changed_ns = 0;
  bool operator==(const FileStamp&) const = default;
};

/// Throws UserError, without the file's name, where it is no file that can be read.
FileStamp stamp_of(const std::filesystem::path& path);

struct HashedFile {
  std::filesystem::path path;  ///< absolute
  FileStamp stamp;             ///< before its bytes were read
  std::string hash;            ///< of its bytes
};

/// Files from this size on are not read again while their stamp is what it was.
inline constexpr uint64_t least_stamped_bytes = uint64_t{256} << 20;

/// The file's checksum. That of a large file is kept with its stamp in `folder`/hashes, unless it was changed in the last two seconds:
/// a file system's clock may be too coarse to tell a change after that. Throws UserError where it is no file that can be read.
HashedFile hash_data_file(const std::filesystem::path& path, const std::filesystem::path& folder,
                          uint64_t least_stamped = least_stamped_bytes);

/// Removes a kept checksum, and what a killed writer of one has left; any other file of the folder stays.
void forget_hash(const std::filesystem::path& kept);
/// The same where the checksum's file is no longer there.
void forget_hash_of_missing_file(const std::filesystem::path& kept);

/// 32 hexadecimal digits, as checksum() gives them.
bool is_checksum(std::string_view text);

/// Makes the folder for its owner alone, and those above it. One that is there stays as it is. Throws SystemError.
void make_private_folder(const std::filesystem::path& folder);

}  // namespace cotune
