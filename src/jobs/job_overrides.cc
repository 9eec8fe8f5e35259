#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/diagnostics.h"
#include "jobs/job_layers.h"
#include "jobs/option_value.h"
#include "jobs/swept_fields.h"
#include "jobs/yaml_document.h"

namespace cotune {

namespace {

std::string name_in_file(const JobLayers& job) {
  const Option* name = find_option(Section::job, "name");
  const auto given = job.own.find(name);
  return given == job.own.end() ? "" : std::get<std::string>(given->second.value);
}

class OverrideReader {
 public:
  OverrideReader(JobsFileLayers& layers, MistakeList& mistakes) : layers_(layers), mistakes_(mistakes) {}

  void add(const std::string& text) {
    source_ = override_file;
    const size_t equals = text.find('=');
    if (text.starts_with("--") && equals != std::string::npos) return add_run_option(text, equals);
    if (equals == std::string::npos || equals == 0) {
      mistakes_.add(override_file, 0, "", fmt::format("must be key=value, got {}", shown(text)));
      return;
    }
    field_ = text.substr(0, equals);
    value_ = text.substr(equals + 1);
    std::string_view rest = field_;
    if (take(rest, "model.")) {
      set(Section::model, rest, OptionLevel::job_override, layers_.top_overrides);
    } else if (take(rest, "run.")) {
      set(Section::run, rest, OptionLevel::job_override, layers_.top_overrides);
    } else if (take(rest, "defaults.")) {
      set_in_job(rest, OptionLevel::defaults_override, layers_.defaults_overrides);
    } else if (take(rest, "jobs[")) {
      add_by_place(rest);
    } else if (take(rest, "jobs.")) {
      add_by_name(rest);
    } else {
      add_at_root(rest);
    }
  }

 private:
  static bool take(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
  }

  /// within: of the field's value, `.adapter.rr`.
  void fail(const std::string& message, const std::string& within = "") { mistakes_.add(source_, 0, shown(field_) + within, message); }

  /// `--token-budget=512`.
  void add_run_option(const std::string& text, size_t equals) {
    source_ = text.substr(0, equals);
    field_.clear();
    value_ = text.substr(equals + 1);
    std::string key = source_.substr(2);
    std::replace(key.begin(), key.end(), '-', '_');
    set(Section::run, key, OptionLevel::job_override, layers_.top_overrides);
  }

  void add_by_place(std::string_view rest) {
    size_t place = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), place);
    std::string_view after(end, rest.data() + rest.size() - end);
    if (error != std::errc{} || !take(after, "].")) {
      fail("must be jobs[PLACE].KEY or jobs.NAME.KEY");
    } else if (place >= layers_.jobs.size()) {
      fail(fmt::format("there is no such job; the file has {}, counted from 0", layers_.jobs.size()));
    } else {
      set_in_job(after, OptionLevel::job_override, layers_.jobs[place].overrides, &layers_.jobs[place].own);
    }
  }

  void add_by_name(std::string_view rest) {
    JobLayers* found = nullptr;
    size_t length = 0;
    std::vector<std::string> names;
    for (JobLayers& job : layers_.jobs) {
      const std::string name = name_in_file(job);
      if (name.empty()) continue;
      names.push_back(name);
      if (name == rest) return fail(fmt::format("must name one option of the job: {}.KEY=value", shown(field_)));
      if (name.size() >= length && rest.starts_with(name + ".")) {
        found = &job;
        length = name.size();
      }
    }
    if (found != nullptr) {
      set_in_job(rest.substr(length + 1), OptionLevel::job_override, found->overrides, &found->own);
      return;
    }
    const std::string asked(rest.substr(0, rest.find('.')));
    const std::string near = asked.size() < 60 ? nearest_name(asked, names) : "";
    std::string message = fmt::format("no job is called `{}`", shown(asked));
    if (!near.empty()) {
      message += fmt::format("; did you mean `{}`?", near);
    } else if (names.size() <= 20) {
      message += fmt::format("; the file's jobs: {}", fmt::join(names, ", "));
    }
    fail(message);
  }

  void add_at_root(std::string_view rest) {
    for (const Option& option : option_table()) {
      if (std::count(option.root_aliases.begin(), option.root_aliases.end(), rest)) {
        set_option(option, OptionLevel::job_override, layers_.top_overrides);
        return;
      }
    }
    fail("must start with model., run., defaults., jobs[PLACE]. or jobs.NAME.");
  }

  /// own: what the job's entry says, which is not for `defaults`.
  void set_in_job(std::string_view rest, OptionLevel level, OptionLayer& layer, const OptionLayer* own = nullptr) {
    Section section = Section::job;
    std::string_view key = rest;
    for (bool found = true; found;) {
      found = false;
      for (const Section nested : sections_in(section)) {
        if (key == section_name(nested)) return fail(fmt::format("must name one option of `{}`: {}.KEY=value", rest, shown(field_)));
        if (!take(key, std::string(section_name(nested)) + ".")) continue;
        section = nested;
        found = true;
        break;
      }
    }
    set(section, key, level, layer, own);
  }

  void set(Section section, std::string_view key, OptionLevel level, OptionLayer& layer, const OptionLayer* own = nullptr) {
    const bool in_defaults = level == OptionLevel::defaults_override;
    const Option* option = find_option(section, key);
    const Option* of_fields = option == nullptr ? option_of_fields(section, key) : nullptr;
    if (option == nullptr && of_fields == nullptr) {
      const std::string unknown(key), message = unknown_key_message(unknown, section, in_defaults);
      if (stands_for_another(unknown, section, in_defaults)) return fail(message);
      mistakes_.add_superfluous(source_, 0, shown(field_), message);
    } else if (const Option& known = option != nullptr ? *option : *of_fields; in_defaults && !known.in_defaults) {
      fail(fmt::format("every job needs its own `{}`", known.key));
    } else if (option != nullptr) {
      set_option(*option, level, layer);
    } else {
      set_swept_field(*of_fields, std::string(key.substr(of_fields->key.size() + 1)), layer, *own);
    }
  }

  /// `grid` of `grid.train.lr`.
  static const Option* option_of_fields(Section section, std::string_view key) {
    const Option* option = find_option(section, key.substr(0, key.find('.')));
    if (option == nullptr || key.find('.') == std::string_view::npos) return nullptr;
    const OptionType type = option->accepted.type;
    return type == OptionType::grid || type == OptionType::distributions ? option : nullptr;
  }

  /// Leaves the option's other fields as they were given.
  void set_swept_field(const Option& option, const std::string& key, OptionLayer& layer, const OptionLayer& own) {
    const auto path = swept_path(key);
    if (const auto* mistake = std::get_if<ValueMistake>(&path)) return fail(mistake->message);
    GivenOption given{default_value(option), OptionLevel::job_override, source_, 0, field_.substr(0, field_.size() - key.size() - 1)};
    const OptionLayer& before = layer.contains(&option) ? layer : own;
    if (const auto found = before.find(&option); found != before.end() && !found->second.is_null) given = found->second;
    auto& fields = std::get<std::vector<SweptField>>(given.value);
    const auto& name = std::get<std::string>(path);
    const auto place = std::find_if(fields.begin(), fields.end(), [&](const SweptField& field) { return field.option == name; });
    if (is_null()) {
      if (place != fields.end()) fields.erase(place);
      given.is_null = fields.empty() && !given.is_mistaken;
      layer.insert_or_assign(&option, std::move(given));
      return;
    }
    YAML::Node map;
    try {
      map[key] = load_yaml_document(value_, "");
    } catch (const UserError& error) {
      return fail(error.what());
    }
    auto read = read_option_value(option, map);
    if (const auto* mistake = std::get_if<ValueMistake>(&read)) {
      fail(mistake->message);
      for (const ValueMistake& one : mistake->more) fail(one.message);
      return;
    }
    SweptField field = std::get<std::vector<SweptField>>(std::get<OptionValue>(std::move(read))).front();
    field.line = 0;
    if (place != fields.end()) {
      *place = std::move(field);
    } else {
      fields.push_back(std::move(field));
    }
    layer.insert_or_assign(&option, std::move(given));
  }

  bool is_null() const { return value_ == "null" || value_ == "~"; }

  void set_option(const Option& option, OptionLevel level, OptionLayer& layer) {
    GivenOption given{default_value(option), level, source_, 0, field_};
    if (is_null()) {
      given.is_null = true;
      layer.insert_or_assign(&option, std::move(given));
      return;
    }
    YAML::Node node;
    bool literal = true;
    switch (option.accepted.type) {
      case OptionType::wholes:
      case OptionType::lengths:
      case OptionType::whole_by_module:
      case OptionType::number_by_module:
      case OptionType::grid:
      case OptionType::distributions:
      case OptionType::swept_values: literal = false; break;
      case OptionType::files:
      case OptionType::modules: literal = !value_.starts_with('['); break;
      default: break;
    }
    try {
      node = literal ? YAML::Node(value_) : load_yaml_document(value_, "");
    } catch (const UserError& error) {
      return fail(error.what());
    }
    auto read = read_option_value(option, node, literal);
    if (const auto* mistake = std::get_if<ValueMistake>(&read)) {
      fail(mistake->message, mistake->field);
      for (const ValueMistake& one : mistake->more) fail(one.message, one.field);
      given.is_mistaken = true;
    } else {
      given.value = std::get<OptionValue>(std::move(read));
    }
    layer.insert_or_assign(&option, std::move(given));
  }

  JobsFileLayers& layers_;
  MistakeList& mistakes_;
  std::string source_;
  std::string field_;
  std::string value_;
};

}  // namespace

void add_overrides(const std::vector<std::string>& overrides, JobsFileLayers& layers, MistakeList& mistakes) {
  OverrideReader reader(layers, mistakes);
  for (const std::string& text : overrides) reader.add(text);
}

}  // namespace cotune
