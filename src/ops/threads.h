/// How many threads computations take.
#pragma once

#include <cstdint>

namespace cotune {

/// Our kernels and ATen's operators compute with so many, at least 1, where the calling thread calls them, and in threads that come to ATen
/// later. OpenMP's own call does not last: ATen sets the count anew when it is first used.
void set_thread_count(int count);

/// What of so many threads is of any use: all, up to eight for each core that this process may run on. More of them only wait for each other, from
/// some hundreds on for minutes before the first step.
int64_t usable_thread_count(int64_t asked);

}  // namespace cotune
