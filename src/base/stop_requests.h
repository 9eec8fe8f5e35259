/// Which signal asks a program to end, and which asks again, where they come to several threads at the same moment and in any order.
#pragma once

#include <atomic>
#include <cstdint>

namespace cotune {

enum class StopRequest {
  first,     ///< begin to end in order
  repeated,  ///< at once
  known,     ///< nothing new
};

/// SIGINT and SIGTERM are requests of their own. SIGHUP comes beside SIGTERM, before or after it, where a session ends: it is a first request,
/// but never a repeated one, nor does it make one of the next. A signal that the parent passes on (pass_stop_signal_on) and that this
/// process got itself too, as all of a terminal's foreground do, is one request.
/// For handlers of signals, on any thread: lock-free.
class StopRequests {
 public:
  StopRequest take(int number, bool is_passed_on = false);
  void forget() { counts_ = Counts{}; }

 private:
  struct alignas(8) Counts {           ///< as the atomic: clang calls libatomic for less
    uint16_t any = 0;                  ///< whether there was one
    uint16_t sent = 0, passed_on = 0;  ///< without SIGHUP; the larger one is the number of requests
    uint16_t unused = 0;               ///< no padding: its bits would be compared
  };
  std::atomic<Counts> counts_{Counts{}};
  static_assert(std::atomic<Counts>::is_always_lock_free);
};

}  // namespace cotune
