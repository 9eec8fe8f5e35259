// The program. Commands about runs are done here; all others are in libcotune_commands.so beside it, which brings libtorch.
#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/abrupt_exit.h"
#include "console/command_line.h"
#include "console/early_stop.h"
#include "console/run_commands.h"

namespace {

/// OpenMP's idle threads spin for milliseconds by default, which costs several times the work where the cores are shared
/// with other programs. About a tenth of a millisecond bridges the gaps between our parallel regions. The runtime reads
/// the variable when it is loaded.
void limit_idle_spinning() {
  if (std::getenv("GOMP_SPINCOUNT") != nullptr || std::getenv("OMP_WAIT_POLICY") != nullptr) return;
  setenv("GOMP_SPINCOUNT", "2000", 0);
}

/// A closed standard stream would give its number to the next file that is opened, and our lines with it.
void keep_standard_streams_open() {
  for (int descriptor = 0; descriptor < 3; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) < 0) open("/dev/null", descriptor == 0 ? O_RDONLY : O_WRONLY);
  }
}

/// In a folder that is gone relative paths mean nothing, and a library of libtorch ends the process with words that help nobody.
bool is_in_a_folder() {
  std::error_code error;
  std::ignore = std::filesystem::current_path(error);
  if (error) cotune::write_to_standard_error(fmt::format("cotune: the working directory is gone ({}): change to one that exists\n", error.message()));
  return !error;
}

int run_with_engine(int argc, char** argv) {
  limit_idle_spinning();
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path library = program.parent_path() / "libcotune_commands.so";
  void* const handle = dlopen(library.c_str(), RTLD_NOW);
  void* const entry = handle == nullptr ? nullptr : dlsym(handle, "cotune_run_command_line");
  if (entry == nullptr) {
    cotune::write_to_standard_error(fmt::format("cotune: this installation is not whole: {}\n", dlerror()));
    return 1;
  }
  return reinterpret_cast<int (*)(int, char**, std::chrono::steady_clock::time_point)>(entry)(argc, argv, cotune::program_start());
}

}  // namespace

int main(int argc, char** argv) {
  cotune::program_start() = std::chrono::steady_clock::now();
  keep_standard_streams_open();
  if (!is_in_a_folder()) return 1;
  constexpr std::array<std::pair<std::string_view, cotune::AddCommand>, 4> own{{{"job", cotune::add_job_command},
                                                                                {"status", cotune::add_status_command},
                                                                                {"watch", cotune::add_watch_command},
                                                                                {"report", cotune::add_report_command}}};
  for (const auto& [name, add] : own) {
    if (argc > 1 && argv[1] == name) return cotune::run_command_line({&add, 1}, nullptr, argc, argv);
  }
  if (argc > 1 && argv[1] == std::string_view("train")) cotune::catch_early_stops();
  return run_with_engine(argc, argv);
}
