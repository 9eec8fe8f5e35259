/// One kind of failure for all ways of running out of memory, which the run answers by smaller rounds, jobs set aside, or the end of one job.
#pragma once

#include <utility>

namespace cotune {

/// In a handler: rethrows what is handled, a device's c10::OutOfMemoryError and std::bad_alloc as MemoryLimitExceeded (ops/memory.h).
[[noreturn]] void rethrow_within_memory();

template <typename Call>
decltype(auto) within_memory(Call&& call) {
  try {
    return std::forward<Call>(call)();
  } catch (...) {
    rethrow_within_memory();
  }
}

}  // namespace cotune
