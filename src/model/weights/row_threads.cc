#include "model/weights/row_threads.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <vector>

namespace cotune {
namespace {
constexpr int64_t kLeastValuesPerThread = 1 << 17;  // about 0.1 ms of work, well above a thread's start
}

void for_each_row_range(int64_t rows, int64_t columns,
                        const std::function<void(int64_t begin, int64_t end)>& work) {
  const int64_t cores = std::max<int64_t>(std::thread::hardware_concurrency(), 1);
  const int64_t count = std::clamp<int64_t>(rows * columns / kLeastValuesPerThread, 1,
                                            std::min(cores, std::max<int64_t>(rows, 1)));
  if (count == 1) {
    work(0, rows);
    return;
  }
  std::vector<std::exception_ptr> failures(static_cast<size_t>(count));
  std::vector<std::jthread> threads;
  for (int64_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        work(rows * i / count, rows * (i + 1) / count);
      } catch (...) {
        failures[static_cast<size_t>(i)] = std::current_exception();
      }
    });
  }
  threads.clear();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace cotune
