#pragma once

#include <string>

namespace cotune {

/// `0.1.0`.
std::string program_version();

/// What --version prints: program, libtorch, kernels that this processor runs, plugins beside the program.
std::string build_facts();

}  // namespace cotune
