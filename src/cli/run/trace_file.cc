#include "cli/run/trace_file.h"

#include <fmt/format.h>

#include "base/error.h"
#include "base/file.h"
#include "base/sudden_end.h"

namespace cotune {

void write_trace_file(const std::filesystem::path& file, std::string_view text) {
  try {
    write_file_atomically(file, text);
  } catch (const SystemError& error) {
    write_to_standard_error(fmt::format("{}; the run is complete without the trace\n", error.what()));
  }
}

}  // namespace cotune
