/// What ended a message or collective, in words.
#pragma once

#include <exception>
#include <string>

namespace cotune {

inline constexpr char own_abort_text[] = "this rank called abort()";

/// The first line of an error of c10d or Gloo, without the place in their source.
std::string failure_text(const std::exception& error);

/// `rank 1: receiving 64 bytes (activation) from rank 0: Connection closed by peer [127.0.0.1]:4000`
std::string ended_text(const std::string& description, const std::string& failure);

}  // namespace cotune
