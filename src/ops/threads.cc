#include "ops/threads.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "base/process_cores.h"

namespace cotune {
namespace {

constexpr int64_t threads_of_core = 8;

}  // namespace

void set_thread_count(int count) { at::set_num_threads(count); }

int64_t usable_thread_count(int64_t asked) {
  const auto cores = static_cast<int64_t>(cores_of_this_process().size());
  return cores > 0 ? std::min(asked, threads_of_core * cores) : asked;
}

}  // namespace cotune
