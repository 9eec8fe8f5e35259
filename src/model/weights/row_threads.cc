#include "model/weights/row_threads.h"

#include <algorithm>
#include <thread>

#include "base/parallel_for.h"

namespace cotune {
namespace {
constexpr int64_t least_values_per_thread = 1 << 17;  // about 0.1 ms of work, well above a thread's start
}

void for_each_row_range(int64_t rows, int64_t columns,
                        const std::function<void(int64_t begin, int64_t end)>& work) {
  const int64_t cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  const int64_t count = std::clamp<int64_t>(rows * columns / least_values_per_thread, 1,
                                            std::min(cores, std::max<int64_t>(rows, 1)));
  parallel_for(static_cast<size_t>(count), count, [&](size_t index) {
    const auto i = static_cast<int64_t>(index);
    work(rows * i / count, rows * (i + 1) / count);
  });
}

}  // namespace cotune
