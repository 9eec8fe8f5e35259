#include "console/output.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>

#include "base/abrupt_exit.h"
#include "base/descriptor.h"

namespace cotune {
namespace {

bool ended = false, failed = false;

}  // namespace

void print_line(std::string_view text) {
  if (ended) return;
  const std::string line = fmt::format("{}\n", text);
  if (write_all(STDOUT_FILENO, line)) return;
  ended = true;
  failed = errno != EPIPE;
  if (failed) write_to_standard_error(fmt::format("standard output: cannot be written: {}\n", std::strerror(errno)));
}

bool output_failed() { return failed; }

void survive_closed_pipes() { std::signal(SIGPIPE, SIG_IGN); }

}  // namespace cotune
