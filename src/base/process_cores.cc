#include "base/process_cores.h"

#include <sched.h>

namespace cotune {

std::vector<int32_t> cores_of_this_process() {
  std::vector<int32_t> cores;
  cpu_set_t set;
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

}  // namespace cotune
