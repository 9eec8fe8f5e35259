#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>

namespace cotune {

/// Later than every deadline: of a job that has none.
inline constexpr int64_t no_deadline = std::numeric_limits<int64_t>::max();

/// Seconds since 1970-01-01T00:00Z of an ISO 8601 time: YYYY-MM-DD, then optionally Thh:mm, :ss, and Z or ±hh:mm. A time
/// without zone is UTC's; a date alone means the end of that day. Nothing where the text is no such time.
std::optional<int64_t> parse_deadline(std::string_view text);

}  // namespace cotune
