/// How many threads computations take.
#pragma once

namespace cotune {

/// Our kernels and ATen's operators compute with so many, at least 1, where the calling thread calls them, and in threads that come to ATen
/// later. OpenMP's own call does not last: ATen sets the count anew when it is first used.
void set_thread_count(int count);

}  // namespace cotune
