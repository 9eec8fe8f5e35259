/// The program's commands and options as plain values, read off the command line's own definition: shell completions and manual
/// pages are written from them, so that they cannot disagree with the parser.
#pragma once

#include <string>
#include <vector>

#include "jobs/option_table.h"

namespace CLI {
class App;
}

namespace cotune {

struct OptionDescription {
  std::vector<std::string> names;    ///< with their dashes, short ones first; a positional's one name has none
  std::string description;
  std::string group;                 ///< heading that it stands under, of a command with several; "" : none
  std::string value;                 ///< kind of its value, as --help shows it (`TEXT`, `INT`); "" : a flag
  std::string range;                 ///< what a number may be (`0 - 4096`); "" : anything
  std::vector<std::string> choices;  ///< the only values that it takes, `KIND:FILE` any such; empty: others
  std::string default_value;         ///< "" : none is shown
  bool required = false;
  bool repeated = false;
  bool positional() const { return !names.front().starts_with('-'); }
};

struct CommandDescription {
  std::string name;
  std::string description;
  std::vector<OptionDescription> options;  ///< in the order of --help; those that are hidden are left out
  std::vector<CommandDescription> commands;
};

/// CLI::Option::type_name of an option that takes these texts alone, in the form in which CLI::IsMember says it and describe() reads it.
std::string value_type(const std::vector<std::string>& choices);
/// The same of an option of the jobs file.
std::string value_type(const Accepted& accepted);
/// What the option means, and what it accepts where value_type does not say that.
std::string meaning(const Option& option);

/// Of the program, or of one command with those below it.
CommandDescription describe(const CLI::App& app);

}  // namespace cotune
