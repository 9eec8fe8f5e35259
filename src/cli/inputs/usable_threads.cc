#include "cli/inputs/usable_threads.h"

#include <fmt/format.h>

#include <cstdio>

#include "base/counted.h"
#include "ops/threads.h"

namespace cotune {

int64_t usable_threads(int64_t asked, std::string_view option) {
  const int64_t usable = usable_thread_count(asked);
  if (usable < asked) {
    fmt::print(stderr, "{}: {} is more than the cores that this process may use can serve; {} {}\n", option, asked, counted(usable, "thread"),
               usable == 1 ? "computes" : "compute");
  }
  return usable;
}

}  // namespace cotune
