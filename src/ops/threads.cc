#include "ops/threads.h"

#include <ATen/Parallel.h>

namespace cotune {

void set_thread_count(int count) { at::set_num_threads(count); }

}  // namespace cotune
