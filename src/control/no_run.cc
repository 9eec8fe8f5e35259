#include "control/no_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr const char* record_name = "run.json";
constexpr size_t most_named = 3;

std::string what_is_wrong(const fs::path& folder) {
  std::error_code unknown;
  const std::string absolute = fs::absolute(folder).lexically_normal().string();
  if (fs::is_directory(folder, unknown)) return fmt::format("{} is missing in {}", record_name, absolute);
  if (fs::exists(folder, unknown)) return fmt::format("{} is a file, no folder", absolute);
  if (fs::is_symlink(folder, unknown)) {
    return fmt::format("{} is a link to {}, which does not exist", absolute, fs::read_symlink(folder, unknown).string());
  }
  return fmt::format("there is no folder {}", absolute);
}

/// Folders of runs in the folder, beside it, and where cotune train makes them unless it is told otherwise; the newest ones, first.
std::vector<std::string> runs_nearby(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::set<fs::path> seen;
  for (const fs::path& place : {folder, folder.parent_path().empty() ? fs::path(".") : folder.parent_path(), fs::path("runs"), fs::path(".")}) {
    std::error_code trouble;
    for (fs::directory_iterator each(place, trouble), end; !trouble && each != end; each.increment(trouble)) {
      std::error_code unknown;
      const fs::file_time_type written = fs::last_write_time(each->path() / record_name, unknown);
      if (unknown || !seen.insert(fs::canonical(each->path(), unknown)).second) continue;
      found.emplace_back(written, each->path().lexically_normal().string());
    }
  }
  std::ranges::sort(found, std::greater());
  std::vector<std::string> names;
  for (const auto& [written, name] : found) {
    if (names.size() < most_named) names.push_back(name);
  }
  return names;
}

}  // namespace

bool holds_run(const fs::path& folder) {
  std::error_code unknown;
  return fs::exists(folder / record_name, unknown) || fs::exists(folder / "lock", unknown);
}

void throw_no_run(const fs::path& folder) {
  const std::vector<std::string> runs = runs_nearby(folder);
  const std::string advice = runs.empty() ? "`cotune train JOBS_FILE` begins one"
                                          : fmt::format("runs nearby, the newest first: {}", fmt::join(runs, ", "));
  throw_user_error("{}: holds no run: {}. --run takes the output folder of `cotune train`, which is runs/latest unless it is told otherwise; {}",
                   folder.string(), what_is_wrong(folder), advice);
}

}  // namespace cotune
