#pragma once

#include <filesystem>
#include <vector>

namespace cotune {

/// Whether the way to a path leads through one of these places, or ends there: by its own names, or by those of links on it. Whoever removes
/// the place takes the path away, too. path: need not exist. places: absolute, their folders without links; they may be links themselves.
bool path_passes_through(const std::filesystem::path& path, const std::vector<std::filesystem::path>& places);

}  // namespace cotune
