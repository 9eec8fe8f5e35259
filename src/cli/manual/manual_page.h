/// Manual pages in the language of man(7), section 1.
#pragma once

#include <map>
#include <string>

#include "cli/manual/command_description.h"

namespace cotune {

/// The page of the program and that of each command, by the file that man looks for: `cotune.1`, `cotune-job.1` (with the commands
/// below it). date: of what they describe, `2026-01-31`; "": not known.
std::map<std::string, std::string> manual_pages(const CommandDescription& program, const std::string& version, const std::string& date);

}  // namespace cotune
