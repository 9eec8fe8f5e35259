#include "cli/run/trace_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/file.h"
#include "base/sudden_end.h"

namespace cotune {

namespace fs = std::filesystem;

void check_trace_file(const char* option, const fs::path& file, Diagnostics& mistakes) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  std::error_code unknown;
  if (!fs::is_directory(folder, unknown)) {
    mistakes.add(option, 0, "", fmt::format("{} is no folder", folder.string()));
  } else if (fs::is_directory(file, unknown)) {
    mistakes.add(option, 0, "", fmt::format("{} is a folder; accepted is a file", file.string()));
  } else if (fs::exists(file, unknown) && !fs::is_regular_file(file, unknown)) {
    mistakes.add(option, 0, "", fmt::format("{} is no regular file, and would be replaced", file.string()));
  } else if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    mistakes.add(option, 0, "", fmt::format("no file can be made in {}: {}", folder.string(), std::strerror(errno)));
  }
}

void write_trace_file(const fs::path& file, std::string_view text) {
  try {
    write_file_atomically(file, text);
  } catch (const SystemError& error) {
    write_to_standard_error(fmt::format("{}; the run is complete without the trace\n", error.what()));
  }
}

}  // namespace cotune
