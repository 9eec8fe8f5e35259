#include "jobs/options/option_entry.h"

namespace cotune::options {

Accepted of_type(OptionType type) { return {.type = type}; }
Accepted whole(int64_t low, int64_t high) {
  return {.type = OptionType::whole, .low = static_cast<double>(low), .high = static_cast<double>(high)};
}
Accepted at_least(double low) { return {.type = OptionType::number, .low = low}; }
Accepted above(double low, double high) {
  return {.type = OptionType::number, .low = low, .high = high, .low_open = true};
}
Accepted between(double low, double high) { return {.type = OptionType::number, .low = low, .high = high}; }
Accepted share_below_one() { return {.type = OptionType::number, .low = 0, .high = 1, .high_open = true}; }
Accepted choice(std::vector<std::string> choices, ChoiceAliases aliases) {
  return {.type = OptionType::choice, .choices = std::move(choices), .choice_aliases = std::move(aliases)};
}
Accepted hub_name_or(OptionType type) { return {.type = type, .may_be_hub_name = true}; }

Option describe(Section section, std::string key, Accepted accepted, std::string description, Extra extra) {
  Option option;
  option.section = section;
  option.key = std::move(key);
  option.accepted = std::move(accepted);
  option.description = std::move(description);
  option.aliases = std::move(extra.aliases);
  option.root_aliases = std::move(extra.root_aliases);
  option.default_note = std::move(extra.default_note);
  option.required = extra.required;
  option.in_defaults = extra.in_defaults;
  option.is_recorded = extra.is_recorded;
  option.group = std::move(extra.group);
  option.alternative = std::move(extra.alternative);
  option.condition = std::move(extra.condition);
  return option;
}

Option input_only(Section section, std::string key, OptionValue neutral,
                  std::function<void(const OptionTarget&, const OptionValue&)> set, Accepted accepted,
                  std::string description, Extra extra) {
  Option option = describe(section, std::move(key), std::move(accepted), std::move(description), std::move(extra));
  option.input_only = true;
  option.get = [neutral](const OptionTarget&) { return neutral; };
  option.set = std::move(set);
  return option;
}

}  // namespace cotune::options
