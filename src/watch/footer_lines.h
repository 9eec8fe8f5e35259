/// The last lines of a live view: keys, a question, or what became of a request.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace cotune {

/// Printable parts, each whole in a line where it fits, in at most `most` lines (1 or more) of at most so many columns. Parts that matter more
/// come later: the first are left out where lines are too few, and the last one is cut at its end.
std::vector<std::string> footer_lines(std::span<const std::string> parts, size_t columns, size_t most, bool unicode = true);

}  // namespace cotune
