#include "cli/manual/markdown_manual.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace cotune {
namespace {

/// Text of a table's cell.
std::string cell(const std::string& text) {
  std::string result;
  for (const char letter : text) result += letter == '|' ? std::string("\\|") : letter == '\n' ? std::string(" ") : std::string(1, letter);
  return result;
}

std::string accepted_text(const OptionDescription& option) {
  if (!option.choices.empty()) return fmt::format("`{}`", fmt::join(option.choices, "`, `"));
  if (!option.range.empty()) return option.range;
  return option.value.empty() || option.value == "TEXT" ? "" : option.value;
}

std::string option_row(const OptionDescription& option) {
  std::string names = fmt::format("`{}`", fmt::join(option.names, "`, `"));
  std::string notes;
  if (option.required) notes = "required";
  if (!option.default_value.empty()) notes += fmt::format("{}default `{}`", notes.empty() ? "" : ", ", option.default_value);
  return fmt::format("| {} | {} | {}{} |\n", names, cell(accepted_text(option)), cell(option.description),
                     notes.empty() ? "" : fmt::format(" ({})", cell(notes)));
}

void add_command(const CommandDescription& command, const std::string& words, const std::string& heading, std::string& text) {
  text += fmt::format("\n{} `{}`\n\n{}.\n", heading, words,
                      command.description.ends_with('.') ? command.description.substr(0, command.description.size() - 1) : command.description);
  std::string group;
  bool begun = false;
  for (const OptionDescription& option : command.options) {
    if (option.names.back() == "--help") continue;
    if (!begun || option.group != group) {
      text += fmt::format("\n{}| argument | accepted | meaning |\n|---|---|---|\n", option.group.empty() ? "" : fmt::format("{}:\n\n", option.group));
    }
    begun = true;
    group = option.group;
    text += option_row(option);
  }
  for (const CommandDescription& below : command.commands) add_command(below, words + " " + below.name, heading + "#", text);
}

}  // namespace

std::string markdown_manual(const CommandDescription& program) {
  std::string text = fmt::format(
      "# The command line\n\n{}\n`{} COMMAND --help` prints the same, `{} manual COMMAND | man -l -` shows it as a manual page. This page is written "
      "by\n"
      "`{} manual --markdown`, from the definition that the program parses its arguments with.\n",
      program.description, program.name, program.name, program.name);
  for (const CommandDescription& command : program.commands) add_command(command, program.name + " " + command.name, "##", text);
  text.pop_back();
  return text;
}

}  // namespace cotune
