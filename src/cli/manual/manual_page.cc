#include "cli/manual/manual_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace cotune {
namespace {

/// Text of a page: backslashes and hyphens as themselves, no line that begins as a request.
std::string escaped(const std::string& text) {
  std::string result;
  for (const char letter : text) {
    if (letter == '\\') {
      result += "\\e";
    } else if (letter == '-') {
      result += "\\-";
    } else if ((letter == '.' || letter == '\'') && (result.empty() || result.back() == '\n')) {
      result += fmt::format("\\&{}", letter);
    } else {
      result += letter;
    }
  }
  return result;
}

std::string upper_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char letter) { return std::toupper(letter); });
  return text;
}

std::string value_text(const OptionDescription& option) {
  if (option.value.empty()) return "";
  return " \\fI" + escaped(option.choices.empty() ? option.value : fmt::format("{}", fmt::join(option.choices, "|"))) + "\\fR";
}

std::string option_text(const OptionDescription& option) {
  std::string text = ".TP\n";
  if (option.positional()) {
    text += fmt::format("\\fI{}\\fR\n", escaped(option.names.front()));
  } else {
    std::string names;
    for (const std::string& name : option.names) names += (names.empty() ? "\\fB" : ", \\fB") + escaped(name) + "\\fR";
    text += names + value_text(option) + "\n";
  }
  std::string sentence = option.description;
  const auto add = [&sentence](const std::string& note) {
    if (!sentence.empty() && !sentence.ends_with('.')) sentence += '.';
    sentence += (sentence.empty() ? "" : " ") + note;
  };
  if (!option.range.empty()) add(fmt::format("Accepted: {}.", option.range));
  if (!option.default_value.empty()) add(fmt::format("Default: {}.", option.default_value));
  if (option.required && !option.positional()) add("Required.");
  return text + escaped(sentence) + "\n";
}

std::string synopsis(const CommandDescription& command, const std::string& words) {
  std::string text = fmt::format(".B {}\n", escaped(words));
  for (const OptionDescription& option : command.options) {
    if (option.required && !option.positional()) text += fmt::format("\\fB{}\\fR{}\n", escaped(option.names.back()), value_text(option));
  }
  text += "[\\fIOPTIONS\\fR]\n";
  for (const OptionDescription& option : command.options) {
    if (!option.positional()) continue;
    const std::string name = fmt::format("\\fI{}\\fR", escaped(option.names.front()));
    text += option.required ? name + "\n" : fmt::format("[{}]\n", name);
  }
  if (!command.commands.empty()) text += "\\fICOMMAND\\fR ...\n";
  return text;
}

/// Options by group, in their order.
std::string options_text(const CommandDescription& command, const char* heading, const char* group_heading) {
  std::string text, group;
  bool begun = false;
  for (const OptionDescription& option : command.options) {
    if (!begun) text += fmt::format("{} OPTIONS\n", heading);
    if (option.group != group) text += fmt::format("{} {}\n", group_heading, escaped(option.group));
    begun = true;
    group = option.group;
    text += option_text(option);
  }
  return text;
}

/// .TH of every page but its name: section, date, version, title.
std::string heading(const std::string& version, const std::string& date) {
  return fmt::format("1 \"{}\" \"{}\" \"User Commands\"", date, escaped(version));
}

std::string page(const CommandDescription& command, const std::string& words, const std::string& file_name, const std::string& heading) {
  std::string text = fmt::format(".TH {} {}\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n{}", upper_case(escaped(file_name)), heading,
                                 escaped(file_name), escaped(command.description), synopsis(command, words));
  text += options_text(command, ".SH", ".SS");
  return text;
}

}  // namespace

std::map<std::string, std::string> manual_pages(const CommandDescription& program, const std::string& version, const std::string& date) {
  const std::string top = heading(version, date);
  std::map<std::string, std::string> pages;
  std::string& first = pages[program.name + ".1"];
  first = page(program, program.name, program.name, top) + ".SH COMMANDS\n";
  std::string see_also;
  for (const CommandDescription& command : program.commands) {
    const std::string file_name = program.name + "-" + command.name;
    first += fmt::format(".TP\n\\fB{}\\fR\n{}\n", escaped(command.name), escaped(command.description));
    see_also += fmt::format("{}.BR {} (1)", see_also.empty() ? "" : ",\n", escaped(file_name));
    std::string& text = pages[file_name + ".1"];
    text = page(command, program.name + " " + command.name, file_name, top);
    if (!command.commands.empty()) text += ".SH COMMANDS\n";
    for (const CommandDescription& below : command.commands) {
      text += fmt::format(".SS {}\n{}\n.PP\n{}", escaped(below.name), escaped(below.description),
                          synopsis(below, program.name + " " + command.name + " " + below.name));
      for (const OptionDescription& option : below.options) text += option_text(option);
    }
    text += fmt::format(".SH SEE ALSO\n.BR {} (1)\n", escaped(program.name));
  }
  first += ".SH EXIT STATUS\n.TP\n0\nDone.\n.TP\n1\nThe machine or a job failed.\n.TP\n2\nA mistake in what was asked for.\n"
           ".TP\n3\nA bug in the program.\n.TP\n130\nStopped by a signal, after saving.\n.SH SEE ALSO\n" + see_also + "\n";
  return pages;
}

}  // namespace cotune
