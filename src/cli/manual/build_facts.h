#pragma once

#include <string>

namespace cotune {

/// `0.1.0`.
std::string program_version();

/// Of the release or of the source (cmake/SourceDate.cmake), not of the build: `2026-01-31`; "" where it is not known.
std::string source_date();

/// What --version prints: program, libtorch, kernels that this processor runs, plugins beside the program.
std::string build_facts();

}  // namespace cotune
