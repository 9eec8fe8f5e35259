#include "cli/run/hung_ranks.h"

#include <unistd.h>

#include <array>
#include <chrono>
#include <thread>

#include "base/sudden_end.h"

namespace cotune {

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

void end_soon(const std::string& trouble) {
  before_sudden_end();
  write_to_standard_error(trouble + "\n");
  std::thread([] {
    std::this_thread::sleep_for(std::chrono::seconds(2));
    ::_exit(1);
  }).detach();
}

}  // namespace cotune
