#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "base/bus_error.h"
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

/// A closed standard stream would give its number to the next file that is opened, and our lines with it.
void keep_standard_streams_open() {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) < 0) open("/dev/null", descriptor == 0 ? O_RDONLY : O_WRONLY);
  }
}

}  // namespace

int main(int argc, char** argv) {
  limit_idle_spinning(argv);
  keep_standard_streams_open();
  cotune::report_bus_errors();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes is an error of write() like a full disk
  return cotune::run_command_line(argc, argv);
}
