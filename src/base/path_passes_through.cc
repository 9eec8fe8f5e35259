#include "base/path_passes_through.h"

#include <algorithm>
#include <system_error>

namespace cotune {
namespace {

namespace fs = std::filesystem;

constexpr int most_links = 40;  // of links to links, as the kernel has it

bool path_passes_through_by_links(const fs::path& path, const std::vector<fs::path>& places, int links_left) {
  fs::path way;  // as far as it was looked at, without links
  for (const fs::path& name : fs::absolute(path).lexically_normal()) {
    way /= name;
    if (std::find(places.begin(), places.end(), way) != places.end()) return true;
    std::error_code unknown;
    if (!fs::is_symlink(way, unknown)) continue;
    const fs::path target = way.parent_path() / fs::read_symlink(way, unknown);
    if (unknown || links_left == 0) return false;
    if (path_passes_through_by_links(target, places, links_left - 1)) return true;
    way = fs::canonical(way, unknown);
    if (unknown) return false;  // it leads nowhere
  }
  return false;
}

}  // namespace

bool path_passes_through(const fs::path& path, const std::vector<fs::path>& places) { return path_passes_through_by_links(path, places, most_links); }

}  // namespace cotune
