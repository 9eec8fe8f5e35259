#pragma once

#include <filesystem>

namespace cotune {

/// Whether cotune train has written a run there, or begun to.
bool holds_run(const std::filesystem::path& folder);

/// Throws UserError: what was looked for and where, which runs lie nearby, and what to do.
[[noreturn]] void throw_no_run(const std::filesystem::path& folder);

}  // namespace cotune
