/// What a process does where a rank hangs, its own or another's, or the link to it breaks.
#pragma once

#include <string>

namespace cotune {

inline constexpr double default_hang_timeout_s = 30;
/// Of ranks that are threads, where nothing that was measured says how long actions take before the first rounds: the guess is of a usual
/// machine, and on a slow or busy one ten times that may be too little.
inline constexpr double unmeasured_hang_timeout_s = 600;

/// As messages about ranks name it; "unknown" where the system does not say.
std::string host_name();

/// Says what is wrong with the ranks. The run's thread usually ends by itself then, since its messages do; if it does not, the
/// process ends without it, with exit code 1.
void end_soon(const std::string& trouble);

/// Gloo's thread, which moves the bytes, throws where a link breaks while it answers a peer, and nobody can catch what it throws
/// (gloo/transport/tcp/pair.cc, sendAsyncMode). From now on such an exception leaves the watch three seconds, since it may know which rank
/// is lost and in which action; then `rank` ("rank 1 on host") is said with the reason, and the process ends with exit code 1. Exceptions
/// that are no std::runtime_error end it as before.
void tell_of_broken_links(const std::string& rank);

}  // namespace cotune
