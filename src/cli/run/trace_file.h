/// The files of --trace and --rank-trace.
#pragma once

#include <filesystem>
#include <string_view>

namespace cotune {

/// At the end of a run, which does not fail with it: what goes wrong is said on standard error.
void write_trace_file(const std::filesystem::path& file, std::string_view text);

}  // namespace cotune
