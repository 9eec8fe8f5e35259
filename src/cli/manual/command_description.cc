#include "cli/manual/command_description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <sstream>

#include "jobs/option_value.h"

namespace cotune {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

/// `TEXT:{a,b}`, `INT:INT in [0 - 9]`, `TEXT`: the kind, then what validators say of themselves.
void describe_value(const std::string& type, OptionDescription& option) {
  const size_t colon = type.find(':');
  option.value = type.substr(0, colon);
  if (colon == std::string::npos) return;
  const std::string rule = type.substr(colon + 1);
  const size_t brace = rule.find('{'), bracket = rule.find('[');
  if (brace != std::string::npos && rule.back() == '}') {
    option.choices = split(rule.substr(brace + 1, rule.size() - brace - 2), ',');
  } else if (bracket != std::string::npos && rule.back() == ']') {
    option.range = rule.substr(bracket + 1, rule.size() - bracket - 2);
  }
}

OptionDescription describe(const CLI::Option& from, const std::string& group) {
  OptionDescription option;
  for (const std::string& name : from.get_snames()) option.names.push_back("-" + name);
  for (const std::string& name : from.get_lnames()) option.names.push_back("--" + name);
  if (option.names.empty()) option.names.push_back(from.get_name(true));
  option.description = from.get_description();
  option.group = group;
  if (from.get_items_expected_max() > 0) describe_value(from.get_type_name(), option);
  option.default_value = from.get_default_str();
  option.required = from.get_required();
  option.repeated = from.get_items_expected_max() > 1;
  return option;
}

void add_options(const CLI::App& app, const std::string& group, std::vector<OptionDescription>& options) {
  for (const CLI::Option* option : app.get_options({})) {
    if (!option->get_group().empty()) options.push_back(describe(*option, group));
  }
}

}  // namespace

std::string value_type(const std::vector<std::string>& choices) {
  return choices.empty() ? "TEXT" : fmt::format("TEXT:{{{}}}", fmt::join(choices, ","));
}

std::string value_type(const Accepted& accepted) {
  if (accepted.type != OptionType::choice) return value_type(std::vector<std::string>());
  std::vector<std::string> choices = accepted.choices;
  if (accepted.may_be_emulated) choices.push_back("emulated:FILE");
  return value_type(choices);
}

std::string meaning(const Option& option) {
  constexpr OptionType told_by_name[] = {OptionType::choice, OptionType::boolean, OptionType::text, OptionType::path};
  const bool is_told = std::ranges::count(told_by_name, option.accepted.type) > 0;
  return is_told ? option.description : fmt::format("{} Accepted: {}.", option.description, accepted_text(option));
}

CommandDescription describe(const CLI::App& app) {
  CommandDescription command{app.get_name(), app.get_description(), {}, {}};
  add_options(app, "", command.options);
  for (const CLI::App* part : app.get_subcommands({})) {
    if (part->get_name().empty()) {  // a group of options
      add_options(*part, part->get_group(), command.options);
    } else {
      command.commands.push_back(describe(*part));
    }
  }
  return command;
}

}  // namespace cotune
