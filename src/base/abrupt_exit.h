/// What is put in order before the program ends without unwinding: by _exit, or by a signal.
#pragma once

#include <string_view>

namespace cotune {

/// The function may be called by handlers of signals, on any thread. There is one; nullptr takes it away.
void call_before_sudden_end(void (*call)());

/// Calls it, where there is one. By whoever ends the program so, before the last message. May be called by a handler of signals.
void before_sudden_end();

/// At once, and silently not where that fails, as on a terminal that has gone: an error that cannot be told must not become another.
/// May be called by a handler of signals.
void write_to_standard_error(std::string_view bytes) noexcept;

}  // namespace cotune
