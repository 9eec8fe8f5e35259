#include <unistd.h>

#include <cstdlib>

#include "cli/commands.h"

namespace {

/// OpenMP's idle threads spin for milliseconds by default, which costs several times the work where the cores are shared
/// with other programs. About a tenth of a millisecond bridges the gaps between our parallel regions. The runtime reads
/// the variable before main() runs, so the program starts itself again, once.
void limit_idle_spinning(char** argv) {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "2000", 0);
  execv("/proc/self/exe", argv);  // on failure the program goes on as it is
}

}  // namespace

int main(int argc, char** argv) {
  limit_idle_spinning(argv);
  return cotune::run_command_line(argc, argv);
}
