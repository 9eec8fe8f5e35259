/// Completion scripts for shells: commands, options, and the values of options that have a few. Everything else completes to files.
#pragma once

#include <string>

#include "cli/manual/command_description.h"

namespace cotune {

/// For ~/.local/share/bash-completion/completions/PROGRAM, or to be sourced. Needs bash 4.4 and no other package.
std::string bash_completion(const CommandDescription& program);
/// A function file, _PROGRAM, for a folder of $fpath.
std::string zsh_completion(const CommandDescription& program);
/// For ~/.config/fish/completions/PROGRAM.fish.
std::string fish_completion(const CommandDescription& program);

}  // namespace cotune
