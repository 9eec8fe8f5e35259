/// What a process does where a rank hangs, its own or another's.
#pragma once

#include <string>

namespace cotune {

inline constexpr double default_hang_timeout_s = 30;

/// As messages about ranks name it; "unknown" where the system does not say.
std::string host_name();

/// Says what is wrong with the ranks. The run's thread usually ends by itself then, since its messages do; if it does not, the
/// process ends without it, with exit code 1.
void end_soon(const std::string& trouble);

}  // namespace cotune
