#include "base/parallel_for.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>
#include <vector>

namespace cotune {

void parallel_for(size_t count, int64_t threads, const std::function<void(size_t index)>& work) {
  std::vector<std::exception_ptr> failures(count);
  std::atomic<size_t> next = 0;
  const auto take = [&] {
    for (size_t index = next++; index < count; index = next++) {
      try {
        work(index);
      } catch (...) {
        failures[index] = std::current_exception();
      }
    }
  };
  {
    std::vector<std::jthread> others;
    const size_t most = std::min(count, static_cast<size_t>(std::max<int64_t>(threads, 1)));
    for (size_t i = 1; i < most; ++i) others.emplace_back(take);
    take();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
}

}  // namespace cotune
