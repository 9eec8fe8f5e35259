/// The fields of a sweep's `grid`, `random` and `values`, between YAML and text.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "jobs/option_value.h"

namespace cotune {

/// An option with a value that a sweep sets, or takes back (null) so that the default holds.
struct SweptOption {
  const Option* option = nullptr;
  OptionValue value;
  bool is_null = false;
  std::string text;  ///< the value as YAML
};

/// Reads a map: option (by key or alias) or section → list of values (grid), the same or a range (distributions), or one value
/// (swept_values). Every value must be one that the option accepts; all that is wrong is told, one ValueMistake with the others as `more`.
/// Ranges are of options that are one number; the ends of those of whole numbers are at most 2^53, so that they, and what is drawn between
/// them, are exact.
std::variant<OptionValue, ValueMistake> read_swept_fields(OptionType type, const YAML::Node& node);

/// What the key of a field names, by key or alias: the path of an option, or a section.
std::variant<std::string, ValueMistake> swept_path(const std::string& key);

/// What one value of a field sets: the option, or, of a section, all that the map names.
std::vector<SweptOption> options_set_by(const SweptField& field, const std::string& value);

/// `adapter.r: [4, 8]`, `train.learning_rate: {log_uniform: [1e-05, 0.001]}`.
std::string to_yaml_text(const SweptField& field);

}  // namespace cotune
