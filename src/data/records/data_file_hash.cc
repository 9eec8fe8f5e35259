#include "data/records/data_file_hash.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/atomic_file.h"
#include "base/error.h"
#include "base/file.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int64_t second_ns = 1'000'000'000;

int64_t nanoseconds(const timespec& time) { return time.tv_sec * second_ns + time.tv_nsec; }

struct stat status_of(const fs::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) throw_user_error("cannot open: {}", std::strerror(errno));
  if (!S_ISREG(status.st_mode)) throw_user_error("is not a regular file");
  return status;
}

FileStamp stamp_of(const struct stat& status) {
  return {status.st_dev, status.st_ino, static_cast<uint64_t>(status.st_size), nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)};
}

Json json_of(const fs::path& path, const FileStamp& stamp) {
  return {{"path", path.string()}, {"device", stamp.device},           {"inode", stamp.inode},
          {"bytes", stamp.bytes},  {"modified_ns", stamp.modified_ns}, {"changed_ns", stamp.changed_ns}};
}

/// The hash that is kept for the stamp.
std::optional<std::string> kept_hash(const fs::path& file, const Json& stamp) {
  try {
    const Json kept = Json::parse(read_file(file));
    if (kept.at("stamp") == stamp) return kept.at("hash").get<std::string>();
  } catch (const std::exception&) {  // none, or a damaged one: the file is read again
  }
  return std::nullopt;
}

bool was_just_changed(const FileStamp& stamp) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return nanoseconds(now) - std::max(stamp.changed_ns, stamp.modified_ns) < 2 * second_ns;
}

bool is_name_of_kept_hash(const fs::path& path) { return path.extension() == ".json" && is_checksum(path.stem().string()); }

template <typename Unwanted>
void forget_hash_where(const fs::path& kept, Unwanted is_unwanted) {
  if (is_temporary_of(kept, is_name_of_kept_hash)) {
    remove_abandoned(kept);
    return;
  }
  if (!is_name_of_kept_hash(kept)) return;
  try {
    const Json record = Json::parse(read_file(kept));
    const std::string file = record.at("stamp").at("path").get<std::string>();
    if (!is_checksum(record.at("hash").get<std::string>()) || !is_unwanted(file)) return;
  } catch (const std::exception&) {  // it is not ours
    return;
  }
  std::error_code ignored;
  fs::remove(kept, ignored);
}

}  // namespace

FileStamp stamp_of(const fs::path& path) { return stamp_of(status_of(path)); }

HashedFile hash_data_file(const fs::path& path, const fs::path& folder, uint64_t least_stamped) {
  const struct stat status = status_of(path);
  std::error_code error;
  HashedFile hashed{.path = fs::weakly_canonical(path, error), .stamp = stamp_of(status), .hash = {}};
  if (hashed.path.empty()) hashed.path = fs::absolute(path);
  if (hashed.stamp.bytes < least_stamped) {
    hashed.hash = checksum_of_file(path);
    return hashed;
  }
  const fs::path kept = folder / "hashes" / (checksum(hashed.path.string()) + ".json");
  const Json stamp = json_of(hashed.path, hashed.stamp);
  if (const auto hash = kept_hash(kept, stamp)) {
    hashed.hash = *hash;
    return hashed;
  }
  const bool may_change_unseen = was_just_changed(hashed.stamp);
  hashed.hash = checksum_of_file(path);
  if (may_change_unseen) return hashed;
  try {
    make_private_folder(folder);
    make_private_folder(kept.parent_path());
    AtomicFile file(kept, 0600);
    file.append(Json{{"stamp", stamp}, {"hash", hashed.hash}}.dump());
    file.commit();
  } catch (const std::exception&) {  // the folder is read-only, or the disk full: it is read again next time
  }
  return hashed;
}

bool is_checksum(std::string_view text) { return text.size() == 32 && text.find_first_not_of("0123456789abcdef") == text.npos; }

void make_private_folder(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return;
  fs::create_directories(folder.parent_path(), error);
  if (!error && ::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) error = {errno, std::generic_category()};
  if (error) throw SystemError(fmt::format("{}: cannot create: {}", folder.string(), error.message()));
}

void forget_hash(const fs::path& kept) {
  forget_hash_where(kept, [](const fs::path&) { return true; });
}

void forget_hash_of_missing_file(const fs::path& kept) {
  forget_hash_where(kept, [](const fs::path& file) {
    std::error_code error;
    return !fs::exists(file, error) && !error;
  });
}

}  // namespace cotune
