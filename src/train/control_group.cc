#include "train/control_group.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr int64_t unlimited = std::numeric_limits<int64_t>::max();

/// What a version of control groups calls its files.
struct Names {
  const char* limit;
  const char* usage;
  const char* droppable;  ///< the entry of memory.stat
};
constexpr Names version1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
constexpr Names version2{"memory.max", "memory.current", "inactive_file"};

/// Nothing where the file is missing or holds no number (`max`).
std::optional<int64_t> number_in(const fs::path& file) {
  std::ifstream stream(file);
  int64_t value = 0;
  if (!(stream >> value)) return std::nullopt;
  return value;
}

int64_t entry_of(const fs::path& file, const std::string& name) {
  std::ifstream stream(file);
  std::string key;
  int64_t value = 0;
  while (stream >> key >> value) {
    if (key == name) return value;
  }
  return 0;
}

int64_t allowance_of_one(const fs::path& group, const Names& names) {
  const std::optional<int64_t> limit = number_in(group / names.limit), usage = number_in(group / names.usage);
  if (!limit || !usage) return unlimited;
  const int64_t used = std::max<int64_t>(0, *usage - entry_of(group / "memory.stat", names.droppable));
  return std::max<int64_t>(0, *limit - used);
}

/// Of the group at `path` below where the hierarchy is mounted, and of every group above it.
int64_t allowance(const fs::path& mounted, const fs::path& path, const Names& names) {
  int64_t least = allowance_of_one(mounted, names);
  fs::path group = mounted;
  for (const fs::path& part : path.relative_path()) {
    if (part == "..") continue;  // above the container's own root, which is what is mounted
    group /= part;
    least = std::min(least, allowance_of_one(group, names));
  }
  return least;
}

/// Whether a comma-separated list holds the word.
bool lists(const std::string& words, const std::string& word) {
  return ("," + words + ",").find("," + word + ",") != std::string::npos;
}

}  // namespace

int64_t control_group_allowance_bytes(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  std::ifstream groups(root / "proc/self/cgroup");
  int64_t least = unlimited;
  std::string line;
  while (std::getline(groups, line)) {  // NUMBER:CONTROLLERS:PATH; version 2 is 0::PATH
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const fs::path path = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min({least, allowance(mounts, path, version2), allowance(mounts / "unified", path, version2)});
    } else if (lists(controllers, "memory")) {
      least = std::min(least, allowance(mounts / "memory", path, version1));
    }
  }
  return least;
}

}  // namespace cotune
