/// Spreads independent rows over the machine's cores. (at::parallel_for would need OpenMP in this layer, and
/// loading happens once.)
#pragma once

#include <cstdint>
#include <functional>

namespace cotune {

/// Calls `work(begin, end)` for ranges that together cover 0 … rows − 1 once, each on one thread; small work
/// stays on the calling thread. The first exception thrown by `work` is rethrown after all threads have
/// ended.
void for_each_row_range(int64_t rows, int64_t columns,
                        const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace cotune
