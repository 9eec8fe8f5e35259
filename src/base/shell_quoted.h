#pragma once

#include <string>
#include <string_view>

namespace cotune {

/// A word of a command as a POSIX shell reads it back: as it is where no character of it means anything there, else in single quotes.
std::string shell_quoted(std::string_view word);

}  // namespace cotune
