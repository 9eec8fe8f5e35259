#pragma once

#include <string_view>

namespace cotune {

/// For `cotune train`: a run does not depend on who reads along. Writes a line to standard output at once. Where that
/// fails, no further line is tried: silently when the reader has gone (`| head`), else with a message on standard error,
/// and output_failed() is true from then on.
void print_line(std::string_view text);
bool output_failed();

/// A closed pipe is an error of write() from here on, and not the end of the program.
void survive_closed_pipes();

}  // namespace cotune
