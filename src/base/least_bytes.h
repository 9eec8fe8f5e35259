/// The least memory with which something fits, found by trying.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace cotune {

/// The least bytes, in steps of what bytes_text shows, that `fits` accepts, where `too_little` (above 0) are not enough: a step less is not. What was
/// accepted last is the answer. Nothing where a thousand times `too_little` does not do. Some fifteen calls.
std::optional<int64_t> least_bytes(int64_t too_little, const std::function<bool(int64_t bytes)>& fits);

}  // namespace cotune
