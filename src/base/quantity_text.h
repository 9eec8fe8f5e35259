/// Seconds and bytes for people.
#pragma once

#include <cstdint>
#include <string>

namespace cotune {

/// Three digits and a unit: `1.25 s`, `340 ms`, `17.0 µs`, `0 s`; `us` where `unicode` is false.
std::string seconds_text(double seconds, bool unicode = true);

/// A time that passes, to the second or minute: `7s`, `3m09s`, `2h05m`; `?` where it is not finite.
std::string duration_text(double seconds);

/// Three digits and a binary unit: `512 B`, `1.50 KiB`, `20.0 GiB`.
std::string bytes_text(int64_t bytes);

/// The next that bytes_text shows as it is, to a byte: what that says is no less than what was given.
int64_t bytes_rounded_up(int64_t bytes);
/// What the last digit that bytes_text shows counts.
int64_t shown_step(int64_t bytes);

}  // namespace cotune
