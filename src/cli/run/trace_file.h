/// The files of --trace and --rank-trace.
#pragma once

#include <filesystem>
#include <string_view>

#include "base/diagnostics.h"

namespace cotune {

/// Before a run: adds a mistake where the file could not be written at its end, as far as can be known. option: which names it.
void check_trace_file(const char* option, const std::filesystem::path& file, Diagnostics& mistakes);

/// At the end of a run, which does not fail with it: what goes wrong is said on standard error.
void write_trace_file(const std::filesystem::path& file, std::string_view text);

}  // namespace cotune
