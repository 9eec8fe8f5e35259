#include "cli/manual/shell_completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

namespace cotune {
namespace {

/// `visit` gets each command with its words below the program: "", "job", "job add".
void for_each_command(const CommandDescription& command, const std::string& words,
                      const std::function<void(const CommandDescription&, const std::string& words)>& visit) {
  visit(command, words);
  for (const CommandDescription& below : command.commands) {
    for_each_command(below, words.empty() ? below.name : words + " " + below.name, visit);
  }
}

std::string single_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char letter : text) quoted += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return quoted + "'";
}

std::string without(std::string text, const std::string& letters) {
  std::erase_if(text, [&](char letter) { return letters.find(letter) != std::string::npos; });
  return text;
}

/// What stands beside a word in a menu: up to the first end of a sentence.
std::string short_description(const std::string& text) {
  const size_t end = std::min(text.find(". "), text.find(": "));
  std::string first = text.substr(0, end);
  if (first.ends_with('.')) first.pop_back();
  return first;
}

std::vector<std::string> names_of(const std::vector<CommandDescription>& commands) {
  std::vector<std::string> names;
  for (const CommandDescription& command : commands) names.push_back(command.name);
  return names;
}

/// What is offered for its value: its choices; of one with a file behind it (`emulated:FILE`) what is before the file.
std::vector<std::string> offered_values(const OptionDescription& option) {
  std::vector<std::string> values = option.choices;
  for (std::string& value : values) {
    if (value.ends_with(":FILE")) value.erase(value.size() - 4);
  }
  return values;
}

/// Words that may stand for themselves: commands below it, and what its arguments may be.
std::vector<std::string> plain_words(const CommandDescription& command) {
  std::vector<std::string> words = names_of(command.commands);
  for (const OptionDescription& option : command.options) {
    if (option.positional()) words.insert(words.end(), option.choices.begin(), option.choices.end());
  }
  return words;
}

/// Names of its options; of those alone that take a value, where asked.
std::vector<std::string> option_names(const CommandDescription& command, bool with_values_only) {
  std::vector<std::string> names;
  for (const OptionDescription& option : command.options) {
    if (option.positional() || (with_values_only && option.value.empty())) continue;
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::string zsh_action(const OptionDescription& option) {
  if (option.choices.empty()) return "_files";
  std::string words;
  for (const char letter : fmt::format("({})", fmt::join(offered_values(option), " "))) words += (letter == ':' ? "\\" : "") + std::string(1, letter);
  return words;
}

std::string zsh_option(const OptionDescription& option) {
  const std::string description = without(short_description(option.description), "[]:");
  if (option.positional()) return single_quoted(fmt::format(":{}:{}", without(option.names.front(), ":"), zsh_action(option)));
  const std::string value = option.value.empty() ? "" : fmt::format(":{}:{}", option.value, zsh_action(option));
  const std::string again = option.repeated ? "*" : fmt::format("({})", fmt::join(option.names, " "));
  std::string specs;
  for (const std::string& name : option.names) {
    specs += (specs.empty() ? "" : " ") + single_quoted(fmt::format("{}{}[{}]{}", again, name, description, value));
  }
  return specs;
}

std::string function_name(const std::string& program, const std::string& words) {
  std::string name = "_" + program + (words.empty() ? "" : " " + words);
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

}  // namespace

std::string bash_completion(const CommandDescription& program) {
  std::string lists, choices;
  for_each_command(program, "", [&](const CommandDescription& command, const std::string& words) {
    lists += fmt::format("    {})\n      words={}\n      options={}\n      takes_value={} ;;\n", single_quoted(words),
                         single_quoted(fmt::format("{}", fmt::join(plain_words(command), " "))),
                         single_quoted(fmt::format("{}", fmt::join(option_names(command, false), " "))),
                         single_quoted(fmt::format(" {} ", fmt::join(option_names(command, true), " "))));
    for (const OptionDescription& option : command.options) {
      if (option.choices.empty() || option.positional()) continue;
      for (const std::string& name : option.names) {
        choices += fmt::format("      {}) values={} ;;\n", single_quoted(words + " " + name),
                               single_quoted(fmt::format("{}", fmt::join(offered_values(option), " "))));
      }
    }
  });
  return fmt::format(R"(# Completion of {0} in bash, made by `{0} completion bash`.
_{0}_lists() {{
  case $1 in
{1}  esac
}}

_{0}() {{
  local words options takes_value values= command= word index option
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}}
  # --option=value comes as three words where = breaks words.
  if [[ $current == = ]]; then
    current= ; option=$previous
  elif [[ $previous == = && $COMP_CWORD -ge 2 ]]; then
    option=${{COMP_WORDS[COMP_CWORD - 2]}}
  else
    option=$previous
  fi
  _{0}_lists ''
  for ((index = 1; index < COMP_CWORD; ++index)); do
    word=${{COMP_WORDS[index]}}
    if [[ $takes_value == *" $word "* ]]; then
      [[ ${{COMP_WORDS[index + 1]-}} == = ]] && ((++index))
      ((++index))
    elif [[ $word != -* && " $words " == *" $word "* ]]; then
      command=${{command:+$command }}$word
      _{0}_lists "$command"
    fi
  done
  COMPREPLY=()
  if [[ $option == -* && $takes_value == *" $option "* ]]; then
    case "$command $option" in
{2}    esac
    if [[ -n $values ]]; then
      mapfile -t COMPREPLY < <(compgen -W "$values" -- "$current")
    else
      compopt -o default
    fi
  elif [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ -n $words ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
  else
    compopt -o default
  fi
}}
complete -F _{0} {0}
)",
                     program.name, lists, choices);
}

std::string zsh_completion(const CommandDescription& program) {
  std::string functions;
  for_each_command(program, "", [&](const CommandDescription& command, const std::string& words) {
    std::string specs;
    for (const OptionDescription& option : command.options) specs += " \\\n    " + zsh_option(option);
    const std::string function = function_name(program.name, words);
    functions += fmt::format("{}() {{\n", function);
    if (command.commands.empty()) {
      functions += fmt::format("  _arguments{}\n}}\n\n", specs);
      return;
    }
    std::string list, cases;
    for (const CommandDescription& below : command.commands) {
      list += fmt::format("\n        {}", single_quoted(below.name + ":" + short_description(below.description)));
      cases += fmt::format("\n        {}) {} ;;", below.name, function_name(program.name, words.empty() ? below.name : words + " " + below.name));
    }
    functions += fmt::format(
        "  local context state state_descr line\n  typeset -A opt_args\n"
        "  _arguments -C{} \\\n    '1:command:->command' '*::arguments:->arguments'\n"
        "  case $state in\n    command)\n      local -a commands\n      commands=({}\n      )\n      _describe command commands ;;\n"
        "    arguments)\n      case $line[1] in{}\n      esac ;;\n  esac\n}}\n\n",
        specs, list, cases);
  });
  return fmt::format("#compdef {0}\n# Completion of {0} in zsh, made by `{0} completion zsh`.\n\n{1}"
                     "if [ \"$funcstack[1]\" = _{0} ]; then\n  _{0} \"$@\"\nelse\n  compdef _{0} {0}\nfi\n",
                     program.name, functions);
}

std::string fish_completion(const CommandDescription& program) {
  std::string text = fmt::format("# Completion of {0} in fish, made by `{0} completion fish`.\n", program.name);
  for_each_command(program, "", [&](const CommandDescription& command, const std::string& words) {
    std::string reached = words.empty() ? "__fish_use_subcommand" : "";
    for (size_t begin = 0; begin < words.size();) {
      const size_t end = std::min(words.find(' ', begin), words.size());
      reached += fmt::format("{}__fish_seen_subcommand_from {}", reached.empty() ? "" : "; and ", words.substr(begin, end - begin));
      begin = end + 1;
    }
    if (!words.empty() && !command.commands.empty()) {
      reached += fmt::format("; and not __fish_seen_subcommand_from {}", fmt::join(names_of(command.commands), " "));
    }
    for (const CommandDescription& below : command.commands) {
      text += fmt::format("complete -c {} -n {} -f -a {} -d {}\n", program.name, single_quoted(reached), below.name,
                          single_quoted(short_description(below.description)));
    }
    for (const OptionDescription& option : command.options) {
      if (option.positional()) {
        for (const std::string& choice : option.choices) {
          text += fmt::format("complete -c {} -n {} -f -a {}\n", program.name, single_quoted(reached), choice);
        }
        continue;
      }
      text += fmt::format("complete -c {} -n {}", program.name, single_quoted(reached));
      for (const std::string& name : option.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      }
      if (!option.value.empty()) text += " -r";
      if (!option.choices.empty()) text += fmt::format(" -f -a {}", single_quoted(fmt::format("{}", fmt::join(offered_values(option), " "))));
      text += fmt::format(" -d {}\n", single_quoted(short_description(option.description)));
    }
  });
  return text;
}

}  // namespace cotune
