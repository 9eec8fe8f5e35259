/// One option's value, between YAML, text and the option table.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "jobs/option_table.h"

namespace cotune {

/// What is wrong with a value, for a message.
struct ValueMistake {
  std::string message;
  int line = 0;       ///< where it is not that of the option itself
  std::string field;  ///< inside the option: `.adapter.r`
  std::vector<ValueMistake> more = {};  ///< that were found with it
};

/// Reads a node as the option's type and checks it against what the option accepts. Strict: a number or boolean in
/// quotes, `yes` for true, a fraction for a whole number, infinities and NaN are mistakes.
/// literal: the node is an unquoted command-line text, so that quotes are not looked at.
std::variant<OptionValue, ValueMistake> read_option_value(const Option& option, const YAML::Node& node,
                                                          bool literal = false);

/// "a whole number from 1 to 512", "true or false", "one of lora, bottleneck, diff_pruning".
std::string accepted_text(const Option& option);

/// Its default as people read it, "`1024`", "by `epochs`", "required"; "": none.
std::string default_text(const Option& option);

/// The value as YAML that reads back as the same value: flow style, one line.
std::string to_yaml_text(const OptionValue& value);

/// Text as YAML: plain where that is safe, else in double quotes.
std::string quote_yaml(std::string_view text);

/// User input for a message: at most 60 characters, control characters as `\x1b`.
std::string shown(std::string_view text);

}  // namespace cotune
