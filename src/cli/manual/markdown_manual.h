#pragma once

#include <string>

#include "cli/manual/command_description.h"

namespace cotune {

/// All commands and their options as one page of Markdown: docs/command-line.md.
std::string markdown_manual(const CommandDescription& program);

}  // namespace cotune
