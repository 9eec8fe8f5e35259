#include "jobs/option_value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/diagnostics.h"
#include "base/json_text.h"
#include "jobs/deadline.h"
#include "jobs/emulated_file.h"
#include "jobs/identifier.h"
#include "jobs/memory_size.h"
#include "jobs/module_pattern.h"
#include "jobs/parallel.h"
#include "jobs/swept_fields.h"

namespace cotune {

namespace {

bool is_quoted(const YAML::Node& node, bool literal) {
  return !literal && node.Tag() != "?" && !node.Tag().empty();
}

std::string found_text(const YAML::Node& node, bool literal) {
  switch (node.Type()) {
    case YAML::NodeType::Undefined:
    case YAML::NodeType::Null: return "nothing";
    case YAML::NodeType::Sequence: return "a list";
    case YAML::NodeType::Map: return "a map";
    case YAML::NodeType::Scalar: break;
  }
  const std::string text = shown(node.Scalar());
  if (text.empty()) return "an empty one";
  return is_quoted(node, literal) ? fmt::format("the text \"{}\"", text) : text;
}

std::string range_text(const Accepted& accepted, std::string_view noun) {
  const bool has_low = std::isfinite(accepted.low), has_high = std::isfinite(accepted.high);
  const bool is_whole = noun.find("whole") != std::string_view::npos;
  const auto bound = [is_whole](double value) {
    return is_whole ? fmt::format("{}", static_cast<int64_t>(value)) : fmt::format("{}", value);
  };
  std::string text(noun);
  if (has_low && has_high && !accepted.low_open && !accepted.high_open) {
    return fmt::format("{} from {} to {}", text, bound(accepted.low), bound(accepted.high));
  }
  if (has_low) text += fmt::format(" {} {}", accepted.low_open ? "above" : "of at least", bound(accepted.low));
  if (has_high) {
    text += fmt::format("{} {} {}", has_low ? " and" : "", accepted.high_open ? "below" : "at most",
                        bound(accepted.high));
  }
  return text;
}

bool is_within(const Accepted& accepted, double value) {
  return (accepted.low_open ? value > accepted.low : value >= accepted.low) &&
         (accepted.high_open ? value < accepted.high : value <= accepted.high);
}

/// Whole text as a number; YAML's core schema without its other bases. Nothing when it is none, or not finite.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  if (text.starts_with('+')) {
    text.remove_prefix(1);
    if (text.starts_with('-')) return std::nullopt;
  }
  if constexpr (std::is_integral_v<Number>) {
    const std::string_view digits = text.starts_with('-') ? text.substr(1) : text;
    if (digits.size() > 1 && digits.front() == '0') return std::nullopt;
  }
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(number)) return std::nullopt;
  }
  return number;
}

bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

constexpr int64_t most_examples = 1'000'000'000'000;

class ValueReader {
 public:
  ValueReader(const Option& option, bool literal) : option_(option), literal_(literal) {}

  std::variant<OptionValue, ValueMistake> read(const YAML::Node& node) {
    switch (option_.accepted.type) {
      case OptionType::modules: return read_modules(node);
      case OptionType::wholes: return read_wholes(node);
      case OptionType::lengths: return read_lengths(node);
      case OptionType::files: return read_files(node);
      case OptionType::whole_by_module: return read_by_module<int64_t>(node);
      case OptionType::number_by_module: return read_by_module<double>(node);
      case OptionType::grid:
      case OptionType::distributions:
      case OptionType::swept_values: return read_swept_fields(option_.accepted.type, node);
      default: break;
    }
    if (!node.IsScalar()) return unacceptable(node);
    const std::string& text = node.Scalar();
    switch (option_.accepted.type) {
      case OptionType::boolean:
        if (is_quoted(node, literal_)) return unacceptable(node);
        if (text == "true" || text == "True" || text == "TRUE") return OptionValue(true);
        if (text == "false" || text == "False" || text == "FALSE") return OptionValue(false);
        return unacceptable(node);
      case OptionType::whole:
        if (option_.accepted.may_be_auto && text == "auto") return OptionValue(text);
        return read_number<int64_t>(node);
      case OptionType::seed: return read_number<uint64_t>(node);
      case OptionType::number: return read_number<double>(node);
      case OptionType::choice: return read_choice(node);
      default: return read_text(node);
    }
  }

 private:
  ValueMistake unacceptable(const YAML::Node& node) const { return unacceptable(found_text(node, literal_)); }
  ValueMistake unacceptable(const std::string& found) const {
    return {fmt::format("must be {}, got {}", accepted_text(option_), found)};
  }

  static ValueMistake all_of(std::vector<std::string> messages) {
    ValueMistake mistake{messages.front()};
    for (size_t i = 1; i < messages.size(); ++i) mistake.more.push_back({messages[i]});
    return mistake;
  }

  template <typename Number>
  std::variant<OptionValue, ValueMistake> read_number(const YAML::Node& node) const {
    const std::optional<Number> number = parse_number<Number>(node.Scalar());
    if (number && is_quoted(node, literal_)) {
      return ValueMistake{fmt::format("must be {}, got {}: write it without quotes", accepted_text(option_),
                                      found_text(node, literal_))};
    }
    if (!number || !is_within(option_.accepted, static_cast<double>(*number))) return unacceptable(node);
    return OptionValue(*number);
  }

  std::variant<OptionValue, ValueMistake> read_choice(const YAML::Node& node) const {
    const std::string& text = node.Scalar();
    const Accepted& accepted = option_.accepted;
    if (std::count(accepted.choices.begin(), accepted.choices.end(), text)) return OptionValue(text);
    if (accepted.may_be_emulated && !emulated_file(text).empty() && !has_control_characters(text)) return OptionValue(text);
    for (const auto& [alias, choice] : accepted.choice_aliases) {
      if (alias == text) return OptionValue(choice);
    }
    const std::string near = text.size() < 60 ? nearest_name(text, accepted.choices) : "";
    ValueMistake mistake = unacceptable(node);
    if (!near.empty()) mistake.message += fmt::format("; did you mean `{}`?", near);
    return mistake;
  }

  std::variant<OptionValue, ValueMistake> read_text(const YAML::Node& node) const {
    const std::string& text = node.Scalar();
    bool good = !text.empty() && !has_control_characters(text);
    if (option_.accepted.type == OptionType::identifier) good = good && is_job_identifier(text);
    if (option_.accepted.type == OptionType::time) good = good && parse_deadline(text).has_value();
    if (option_.accepted.type == OptionType::memory) good = good && parse_memory_size(text).has_value();
    if (option_.accepted.type == OptionType::parallel)
      good = good && (text == parallel_as_stages || text == parallel_as_planned || parse_parallel(text));
    if (!good) return unacceptable(node);
    return OptionValue(text);
  }

  std::variant<OptionValue, ValueMistake> read_modules(const YAML::Node& node) const {
    std::vector<std::string> names;
    if (node.IsScalar()) {
      names.push_back(node.Scalar());
    } else if (node.IsSequence() && node.size() > 0) {
      for (const YAML::Node& item : node) {
        if (!item.IsScalar()) return unacceptable("a list with " + found_text(item, literal_) + " in it");
        names.push_back(item.Scalar());
      }
    } else {
      return unacceptable(node.IsSequence() ? "an empty list" : found_text(node, literal_));
    }
    std::vector<std::string> mistakes;
    for (const std::string& name : names) {
      if (std::string mistake = module_pattern_mistake(name, node.IsSequence()); !mistake.empty()) mistakes.push_back(std::move(mistake));
    }
    if (!mistakes.empty()) return all_of(std::move(mistakes));
    return OptionValue(std::move(names));
  }

  std::variant<OptionValue, ValueMistake> read_wholes(const YAML::Node& node) const {
    const auto number_of = [this](const YAML::Node& item) {
      const std::optional<int64_t> number = item.IsScalar() && !is_quoted(item, false) ? parse_number<int64_t>(item.Scalar()) : std::nullopt;
      return number && is_within(option_.accepted, static_cast<double>(*number)) ? number : std::nullopt;
    };
    if (const std::optional<int64_t> alone = number_of(node)) return OptionValue(std::vector{*alone});  // as PEFT takes one
    if (!node.IsSequence()) return unacceptable(node);
    std::vector<int64_t> numbers;
    for (const YAML::Node& item : node) {
      const std::optional<int64_t> number = number_of(item);
      if (!number) return unacceptable("a list with " + found_text(item, false) + " in it");
      numbers.push_back(*number);
    }
    return OptionValue(std::move(numbers));
  }

  std::variant<OptionValue, ValueMistake> read_lengths(const YAML::Node& node) const {
    if (node.IsScalar()) {
      const std::string& text = node.Scalar();
      if (text.empty() || has_control_characters(text) || parse_number<double>(text)) return unacceptable(node);
      return OptionValue(LengthsSpec{.histogram = text});
    }
    std::map<int64_t, int64_t> counts;
    if (node.IsSequence()) {
      const auto list = read_wholes(node);
      if (const auto* mistake = std::get_if<ValueMistake>(&list)) return *mistake;
      for (const int64_t length : std::get<std::vector<int64_t>>(std::get<OptionValue>(list))) ++counts[length];
      if (counts.empty()) return unacceptable("an empty list");
    } else if (node.IsMap()) {
      for (const auto& item : node) {
        const auto number = [](const YAML::Node& value) {
          return value.IsScalar() ? parse_number<int64_t>(value.Scalar()) : std::nullopt;
        };
        const std::optional<int64_t> length = number(item.first), count = number(item.second);
        if (!length || !is_within(option_.accepted, static_cast<double>(*length))) {
          return unacceptable("a map with the length " + found_text(item.first, true));
        }
        if (!count || *count < 1 || *count > most_examples) {
          return unacceptable(fmt::format("{} examples of length {}", found_text(item.second, false), *length));
        }
        if (!counts.emplace(*length, *count).second) return ValueMistake{fmt::format("length {} is given twice", *length)};
      }
      if (counts.empty()) return unacceptable("an empty map");
    } else {
      return unacceptable(node);
    }
    return OptionValue(LengthsSpec{.counts = {counts.begin(), counts.end()}});
  }

  std::variant<OptionValue, ValueMistake> read_files(const YAML::Node& node) const {
    const auto is_path = [](const YAML::Node& item) {
      return item.IsScalar() && !item.Scalar().empty() && !has_control_characters(item.Scalar());
    };
    if (is_path(node)) return OptionValue(std::vector<TrainFile>{{node.Scalar()}});
    if (!node.IsSequence()) return unacceptable(node);
    if (node.size() == 0) return unacceptable("an empty list");
    std::vector<TrainFile> files;
    for (const YAML::Node& item : node) {
      TrainFile& file = files.emplace_back();
      if (is_path(item)) {
        file.path = item.Scalar();
        continue;
      }
      if (!item.IsMap()) return unacceptable("a list with " + found_text(item, false) + " in it");
      for (const auto& entry : item) {
        const std::string key = entry.first.IsScalar() ? entry.first.Scalar() : "";
        if (key == "path" && is_path(entry.second)) {
          file.path = entry.second.Scalar();
        } else if (key == "weight") {
          const std::optional<double> weight =
              entry.second.IsScalar() && !is_quoted(entry.second, false) ? parse_number<double>(entry.second.Scalar()) : std::nullopt;
          if (!weight || !is_within(option_.accepted, *weight)) {
            return ValueMistake{fmt::format("a weight must be {}, got {}", range_text(option_.accepted, "a number"),
                                            found_text(entry.second, false))};
          }
          file.weight = *weight;
        } else {
          return unacceptable(key == "path" ? "a path that is " + found_text(entry.second, false) : "the key " + found_text(entry.first, true));
        }
      }
      if (file.path.empty()) return unacceptable("an entry without `path`");
    }
    const auto weighted = std::count_if(files.begin(), files.end(), [](const TrainFile& file) { return file.weight > 0; });
    if (weighted != 0 && weighted != std::ssize(files)) {
      const auto without = std::find_if(files.begin(), files.end(), [](const TrainFile& file) { return file.weight == 0; });
      return ValueMistake{fmt::format("`{}` has no weight, others have: give one to each file or to none", shown(without->path))};
    }
    return OptionValue(std::move(files));
  }

  template <typename Number>
  std::variant<OptionValue, ValueMistake> read_by_module(const YAML::Node& node) const {
    if (!node.IsMap()) return unacceptable(node);
    ModulePattern<Number> values;
    std::set<std::string> seen;
    std::vector<std::string> mistakes;
    for (const auto& item : node) {
      if (!item.first.IsScalar()) return unacceptable("a key that is " + found_text(item.first, false));
      const std::string& key = item.first.Scalar();
      if (!seen.insert(key).second) mistakes.push_back(fmt::format("`{}` is given twice", shown(key)));
      if (std::string mistake = expression_mistake(key); !mistake.empty()) mistakes.push_back(std::move(mistake));
      const std::optional<Number> number = item.second.IsScalar() && !is_quoted(item.second, false)
                                               ? parse_number<Number>(item.second.Scalar())
                                               : std::nullopt;
      if (!number || !is_within(option_.accepted, static_cast<double>(*number))) {
        mistakes.push_back(unacceptable(fmt::format("{} for `{}`", found_text(item.second, false), shown(key))).message);
      }
      values.emplace_back(key, number.value_or(Number{}));
    }
    if (!mistakes.empty()) return all_of(std::move(mistakes));
    return OptionValue(std::move(values));
  }

  const Option& option_;
  bool literal_;
};

}  // namespace

std::variant<OptionValue, ValueMistake> read_option_value(const Option& option, const YAML::Node& node,
                                                          bool literal) {
  return ValueReader(option, literal).read(node);
}

std::string accepted_text(const Option& option) {
  const Accepted& accepted = option.accepted;
  switch (accepted.type) {
    case OptionType::text: return "a text";
    case OptionType::identifier: return "1 to 100 letters, digits, `.`, `_` and `-`, not starting with `.` or `-`";
    case OptionType::time: return "a time such as 2026-01-31 or 2026-01-31T18:00:00Z";
    case OptionType::path: return accepted.may_be_hub_name ? "a path or a Hugging Face name" : "a path";
    case OptionType::files: return "a path, or a list of paths or of {path: …, weight: …}";
    case OptionType::name_or_path: return accepted.may_be_hub_name ? "a name, a path or a Hugging Face name" : "a name or a path";
    case OptionType::memory: return "auto, an amount such as 8GiB or 512MB (at least 1MiB), or a percentage such as 60%";
    case OptionType::parallel:
      return fmt::format(
          "stages, auto, or degrees such as pp=2,tp=2 or dp=2+tp=2 of at most {} ranks, with len=512 beside some replicas but not all, vp=2 beside "
          "pp, seq beside tp and shard beside dp",
          most_ranks);
    case OptionType::choice:
      return fmt::format("one of {}{}", fmt::join(accepted.choices, ", "), accepted.may_be_emulated ? ", emulated:FILE" : "");
    case OptionType::boolean: return "true or false";
    case OptionType::whole: return range_text(accepted, "a whole number") + (accepted.may_be_auto ? ", or auto" : "");
    case OptionType::seed: return fmt::format("a whole number from {} to 18446744073709551615", accepted.low_open ? 1 : 0);
    case OptionType::number: return range_text(accepted, "a number");
    case OptionType::modules: return "a list of module names, `all-linear` or one regular expression";
    case OptionType::wholes: return range_text(accepted, "a whole number") + ", or a list of such";
    case OptionType::lengths:
      return fmt::format("a list of lengths or a map from lengths to counts, each {}, or the name or file of a histogram",
                         range_text(accepted, "a whole number"));
    case OptionType::whole_by_module:
      return "a map from regular expressions to, each, " + range_text(accepted, "a whole number");
    case OptionType::number_by_module:
      return "a map from regular expressions to, each, " + range_text(accepted, "a number");
    case OptionType::grid: return "a map from options to lists of values";
    case OptionType::distributions: return "a map from options to lists or ranges";
    case OptionType::swept_values: return "a map from options to values";
  }
  return "";
}

std::string quote_yaml(std::string_view text) {
  static const std::set<std::string, std::less<>> reserved = {"y",  "n",   "yes", "no",   "on",
                                                              "off", "true", "false", "null", "nan", "inf"};
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '/';
  };
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const bool plain = !text.empty() && (std::isalpha(static_cast<unsigned char>(text[0])) || text[0] == '/') &&
                     std::all_of(text.begin(), text.end(), is_plain) && !reserved.contains(lower);
  if (plain) return std::string(text);
  return text_of_json(nlohmann::json(text));  // paths need not be UTF-8
}

std::string default_text(const Option& option) {
  if (!option.default_note.empty()) return option.default_note;
  if (option.required) return "required";
  if (option.input_only || (is_unset(default_value(option)) && to_yaml_text(default_value(option)).size() == 2)) return "";
  return fmt::format("`{}`", to_yaml_text(default_value(option)));
}

std::string to_yaml_text(const OptionValue& value) {
  const auto join = [](const auto& items, const auto& one) {
    std::string text;
    for (const auto& item : items) text += (text.empty() ? "" : ", ") + one(item);
    return text;
  };
  return std::visit(
      [&](const auto& held) -> std::string {
        using Held = std::decay_t<decltype(held)>;
        if constexpr (std::is_same_v<Held, std::string>) {
          return quote_yaml(held);
        } else if constexpr (std::is_arithmetic_v<Held>) {
          return fmt::format("{}", held);
        } else if constexpr (std::is_same_v<Held, std::vector<std::string>>) {
          // A single text is a name, `all-linear` or an expression, which only stands outside a list.
          if (held.size() == 1) return quote_yaml(held[0]);
          return "[" + join(held, [](const std::string& item) { return quote_yaml(item); }) + "]";
        } else if constexpr (std::is_same_v<Held, LengthsSpec>) {
          if (held.counts.empty()) return held.histogram.empty() ? "[]" : quote_yaml(held.histogram);
          return "{" + join(held.counts, [](const auto& item) { return fmt::format("{}: {}", item.first, item.second); }) +
                 "}";
        } else if constexpr (std::is_same_v<Held, std::vector<TrainFile>>) {
          if (held.size() == 1 && held[0].weight == 0) return quote_yaml(held[0].path);
          return "[" + join(held, [](const TrainFile& file) {
                   const std::string path = quote_yaml(file.path);
                   return file.weight == 0 ? path : fmt::format("{{path: {}, weight: {}}}", path, file.weight);
                 }) + "]";
        } else if constexpr (std::is_same_v<Held, std::vector<SweptField>>) {
          return "{" + join(held, [](const SweptField& field) { return to_yaml_text(field); }) + "}";
        } else if constexpr (std::is_same_v<Held, std::vector<int64_t>>) {
          return "[" + join(held, [](int64_t item) { return fmt::format("{}", item); }) + "]";
        } else {
          return "{" + join(held, [](const auto& item) {
                   return fmt::format("{}: {}", nlohmann::json(item.first).dump(), item.second);
                 }) + "}";
        }
      },
      value);
}

std::string shown(std::string_view text) {
  std::string result;
  for (unsigned char c : text.substr(0, 60)) {
    if (c < 0x20 || c == 0x7f) {
      result += fmt::format("\\x{:02x}", c);
    } else {
      result += static_cast<char>(c);
    }
  }
  if (text.size() > 60) {
    while (!result.empty() && (static_cast<unsigned char>(result.back()) & 0xC0) == 0x80) result.pop_back();
    if (!result.empty() && static_cast<unsigned char>(result.back()) >= 0xC0) result.pop_back();
    result += "…";
  }
  return result;
}

}  // namespace cotune
