#include "jobs/swept_fields.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <set>

#include "base/diagnostics.h"
#include "base/error.h"
#include "jobs/option_layer.h"
#include "jobs/yaml_document.h"

namespace cotune {

namespace {

/// What the key of a field means: an option, or a section whose options its values name.
struct Key {
  const Option* option = nullptr;
  std::optional<Section> section;
  std::string path() const { return option != nullptr ? option->path() : std::string(section_name(*section)); }
};

constexpr Section swept_sections[] = {Section::data, Section::adapter, Section::train};

constexpr double most_exact_whole = 9007199254740992;  // 2^53

bool is_single_number(const Option& option) {
  const OptionType type = option.accepted.type;
  return type == OptionType::whole || type == OptionType::seed || type == OptionType::number;
}

/// `priority`, `tenant` and what else a job has beside its sections, but its name.
std::vector<std::string> own_options_of_a_job() {
  std::vector<std::string> keys;
  for (const Option& option : option_table()) {
    if (option.section == Section::job && option.key != "name") keys.push_back(option.key);
  }
  return keys;
}

/// Of what such a key is an option, with its section or without: "the run"; "" where of nothing that a sweep could be thought to try.
std::string owner_of(const std::string& key) {
  const std::pair<Section, const char*> owners[] = {
      {Section::run, "the run"}, {Section::model, "the model"}, {Section::halving, "the sweep itself"}, {Section::sweep, "the sweep itself"}};
  for (const auto& [section, owner] : owners) {
    for (const std::string& path : {std::string(section_path(section)), std::string(section_name(section))}) {
      if (key == path || (key.starts_with(path + ".") && find_option(section, key.substr(path.size() + 1)) != nullptr)) return owner;
    }
  }
  for (const auto& [section, owner] : owners) {
    if (find_option(section, key) != nullptr) return owner;
  }
  return "";
}

std::variant<Key, std::string> find_key(const std::string& key) {
  if (key == "name") return std::string("names of candidates are made by the sweep");
  for (const Section section : swept_sections) {
    const std::string name(section_name(section));
    if (key == name) return Key{.section = section};
    if (!key.starts_with(name + ".")) continue;
    if (const Option* option = find_option(section, key.substr(name.size() + 1))) return Key{.option = option};
    return unknown_key_message(key.substr(name.size() + 1), section, false);
  }
  if (const Option* option = find_option(Section::job, key)) return Key{.option = option};
  for (const Section section : swept_sections) {
    if (const Option* option = find_option(section, key)) {
      return fmt::format("options of a sweep are named with their section: did you mean `{}`?", option->path());
    }
  }
  const std::string owner = owner_of(key);
  return fmt::format("{}; a sweep tries options of its job: {}, and those of data, adapter and train, such as `adapter.r` or `train.lr`",
                     owner.empty() ? "is no option of a job" : fmt::format("is an option of {}, the same for all candidates", owner),
                     fmt::join(own_options_of_a_job(), ", "));
}

double number_of(const OptionValue& value) {
  if (const auto* whole = std::get_if<int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* seed = std::get_if<uint64_t>(&value)) return static_cast<double>(*seed);
  return std::get<double>(value);
}

/// What is wrong with a value or a field, one by one.
using Complaints = std::vector<std::string>;

Complaints complaints(std::string wrong) {
  return wrong.empty() ? Complaints{} : Complaints{std::move(wrong)};
}

class FieldReader {
 public:
  explicit FieldReader(OptionType type) : type_(type) {}

  std::variant<OptionValue, ValueMistake> read(const YAML::Node& node) {
    if (!node.IsMap() || node.size() == 0) {
      return ValueMistake{node.IsMap() ? "must name at least one option" : "must be a map from options of the job to what is tried"};
    }
    std::vector<SweptField> fields;
    std::vector<ValueMistake> mistakes;
    std::set<std::string> seen;
    for (const auto& item : node) {
      const int line = std::max(0, line_of(item.first));
      if (!item.first.IsScalar()) {
        mistakes.push_back({"a key must be the name of an option", line});
        continue;
      }
      const std::string& name = item.first.Scalar();
      SweptField field{.line = line};
      for (std::string& wrong : read_named(name, item.second, seen, field)) mistakes.push_back({std::move(wrong), line, "." + shown(name)});
      fields.push_back(std::move(field));
    }
    if (!mistakes.empty()) {
      ValueMistake first = std::move(mistakes.front());
      first.more.assign(std::make_move_iterator(mistakes.begin() + 1), std::make_move_iterator(mistakes.end()));
      return first;
    }
    if (type_ != OptionType::swept_values) return OptionValue(std::move(fields));
    std::vector<std::pair<std::string, std::string>> values;
    for (SweptField& field : fields) values.emplace_back(field.option, std::move(field.values.front()));
    return OptionValue(std::move(values));
  }

 private:
  /// seen: paths of the fields before it.
  Complaints read_named(const std::string& name, const YAML::Node& node, std::set<std::string>& seen, SweptField& field) {
    const auto key = find_key(name);
    if (const auto* unknown = std::get_if<std::string>(&key)) return {*unknown};
    const Key& known = std::get<Key>(key);
    field.option = known.path();
    if (!seen.insert(known.path()).second) return {fmt::format("`{}` is given twice", known.path())};
    return read_field(known, node, field);
  }

  Complaints read_field(const Key& key, const YAML::Node& node, SweptField& field) {
    if (type_ == OptionType::swept_values) return read_value(key, node, field);
    if (type_ == OptionType::distributions && node.IsMap()) return complaints(read_range(key, node, field));
    if (!node.IsSequence()) {
      return {type_ == OptionType::grid
                  ? "must be a list of values to try"
                  : "must be a list to choose from, or a range: {uniform: [LOW, HIGH]} or {log_uniform: [LOW, HIGH]}"};
    }
    if (node.size() == 0) return {"must have at least one value"};
    Complaints all;
    for (const YAML::Node& item : node) {
      for (std::string& wrong : read_value(key, item, field)) all.push_back(std::move(wrong));
    }
    return all;
  }

  /// Adds the value to the field. Returns what is wrong with it.
  static Complaints read_value(const Key& key, const YAML::Node& node, SweptField& field) {
    std::string text;
    Complaints wrong = key.option != nullptr ? complaints(read_option(*key.option, node, text)) : read_section(*key.section, node, text);
    if (!wrong.empty()) return wrong;
    if (std::count(field.values.begin(), field.values.end(), text)) return {fmt::format("{} is given twice", shown(text))};
    field.values.push_back(std::move(text));
    return {};
  }

  static std::string read_option(const Option& option, const YAML::Node& node, std::string& text) {
    if (node.IsNull()) {
      text = "null";
      return "";
    }
    auto read = read_option_value(option, node);
    if (const auto* mistake = std::get_if<ValueMistake>(&read)) return mistake->message;
    text = to_yaml_text(std::get<OptionValue>(read));
    return "";
  }

  static Complaints read_section(Section section, const YAML::Node& node, std::string& text) {
    if (!node.IsMap() || node.size() == 0) return {fmt::format("each value must be a map of options of `{}`", section_name(section))};
    Complaints all;
    std::set<const Option*> seen;
    for (const auto& item : node) {
      const std::string name = item.first.IsScalar() ? item.first.Scalar() : "";
      const Option* option = find_option(section, name);
      std::string value, wrong;
      if (option == nullptr) {
        wrong = fmt::format("{}: {}", shown(name), unknown_key_message(name, section, false));
      } else if (!seen.insert(option).second) {
        wrong = fmt::format("`{}` is given twice in one value", option->key);
      } else if (wrong = read_option(*option, item.second, value); !wrong.empty()) {
        wrong = fmt::format("{}: {}", shown(name), wrong);
      }
      if (!wrong.empty()) {
        all.push_back(std::move(wrong));
        continue;
      }
      text += fmt::format("{}{}: {}", text.empty() ? "{" : ", ", option->key, value);
    }
    text += "}";
    return all;
  }

  std::string read_range(const Key& key, const YAML::Node& node, SweptField& field) {
    if (key.option == nullptr) return "is a section, and ranges are of single options: give a list of maps to choose from";
    if (!is_single_number(*key.option)) return fmt::format("is no number, but {}: give a list of values to choose from", accepted_text(*key.option));
    bool has_range = false, has_step = false;
    for (const auto& item : node) {
      const std::string name = item.first.IsScalar() ? item.first.Scalar() : "";
      const bool is_range = name == "uniform" || name == "log_uniform";
      if (!is_range && name != "step")
        return fmt::format("`{}` is no distribution; accepted: uniform, log_uniform, and step beside uniform", shown(name));
      if (is_range ? std::exchange(has_range, true) : std::exchange(has_step, true)) return "must be one distribution";
      if (!is_range) {
        if (const std::string wrong = read_step(*key.option, item.second, field); !wrong.empty()) return wrong;
        continue;
      }
      field.is_log = name == "log_uniform";
      if (!item.second.IsSequence() || item.second.size() != 2) return fmt::format("{}: must be [LOW, HIGH]", name);
      double* const ends[] = {&field.low, &field.high};
      for (size_t i = 0; i < 2; ++i) {
        auto read = read_option_value(*key.option, item.second[i]);
        if (const auto* mistake = std::get_if<ValueMistake>(&read)) return fmt::format("{}: {}", name, mistake->message);
        *ends[i] = number_of(std::get<OptionValue>(read));
        if (key.option->accepted.type != OptionType::number && std::abs(*ends[i]) > most_exact_whole) {
          return fmt::format("{}: the ends of a range must be at most {}, got {}", name, static_cast<int64_t>(most_exact_whole),
                             item.second[i].Scalar());
        }
      }
      if (!(field.low < field.high)) return fmt::format("{}: the first end, {}, must be below the second, {}", name, field.low, field.high);
      if (field.is_log && field.low <= 0) return fmt::format("log_uniform: both ends must be above 0, got {}", field.low);
    }
    if (!has_range) return "must be {uniform: [LOW, HIGH]} or {log_uniform: [LOW, HIGH]}";
    if (has_step && field.is_log) return "step: belongs to uniform";
    if (has_step && field.step > field.high - field.low) return fmt::format("step: must be at most the width of the range, got {}", field.step);
    return "";
  }

  static std::string read_step(const Option& option, const YAML::Node& node, SweptField& field) {
    Option any = option;
    any.accepted.low = 0;
    any.accepted.low_open = true;
    any.accepted.high = std::numeric_limits<double>::infinity();
    auto read = read_option_value(any, node);
    if (const auto* mistake = std::get_if<ValueMistake>(&read)) return fmt::format("step: {}", mistake->message);
    field.step = number_of(std::get<OptionValue>(read));
    return "";
  }

  OptionType type_;
};

SweptOption read_back(const Option& option, const YAML::Node& node, std::string text) {
  if (node.IsNull()) return {&option, default_value(option), true, std::move(text)};
  auto read = read_option_value(option, node);
  COTUNE_CHECK(std::holds_alternative<OptionValue>(read), "{}: `{}` does not read back", option.path(), text);
  return {&option, std::get<OptionValue>(std::move(read)), false, std::move(text)};
}

}  // namespace

std::variant<OptionValue, ValueMistake> read_swept_fields(OptionType type, const YAML::Node& node) { return FieldReader(type).read(node); }

std::variant<std::string, ValueMistake> swept_path(const std::string& key) {
  const auto known = find_key(key);
  if (const auto* unknown = std::get_if<std::string>(&known)) return ValueMistake{*unknown};
  return std::get<Key>(known).path();
}

std::vector<SweptOption> options_set_by(const SweptField& field, const std::string& value) {
  const Key key = std::get<Key>(find_key(field.option));
  const YAML::Node node = load_yaml_document(value, "");
  if (key.option != nullptr) return {read_back(*key.option, node, value)};
  std::vector<SweptOption> options;
  for (const auto& item : node) {
    const Option& option = *find_option(*key.section, item.first.Scalar());
    SweptOption read = read_back(option, item.second, "null");
    if (!read.is_null) read.text = to_yaml_text(read.value);
    options.push_back(std::move(read));
  }
  return options;
}

std::string to_yaml_text(const SweptField& field) {
  if (!field.values.empty()) return fmt::format("{}: [{}]", field.option, fmt::join(field.values, ", "));
  return fmt::format("{}: {{{}: [{}, {}]{}}}", field.option, field.is_log ? "log_uniform" : "uniform", field.low, field.high,
                     field.step > 0 ? fmt::format(", step: {}", field.step) : "");
}

}  // namespace cotune
