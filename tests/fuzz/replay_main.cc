/// Feeds a fuzz target whole files, without libFuzzer: every regular file named or below a folder named, in order of
/// path. Prints how many there were; a failure prints the input's path before the program dies. Folders that do not
/// exist count as empty, since a target need not have crashers.
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <unistd.h>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

std::string current_input;

void report_signal(int signal) {
  const std::string message = "crashed by the input " + current_input + "\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, message.data(), message.size());
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

std::vector<std::string> files_of(const fs::path& argument) {
  std::vector<std::string> files;
  if (fs::is_regular_file(argument)) files.push_back(argument.string());
  if (fs::is_directory(argument)) {
    for (const auto& entry : fs::recursive_directory_iterator(argument)) {
      if (entry.is_regular_file()) files.push_back(entry.path().string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  for (const int signal : {SIGSEGV, SIGABRT, SIGFPE, SIGBUS, SIGILL}) std::signal(signal, report_signal);
  size_t count = 0;
  LLVMFuzzerTestOneInput(nullptr, 0);
  for (int i = 1; i < argc; ++i) {
    for (const std::string& file : files_of(argv[i])) {
      current_input = file;
      std::ifstream stream(file, std::ios::binary);
      const std::string bytes{std::istreambuf_iterator<char>(stream), {}};
      try {
        LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
      } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s\n", file.c_str(), error.what());
        return 1;
      }
      ++count;
    }
  }
  std::printf("%zu inputs\n", count);
  return count > 0 ? 0 : 1;
}
