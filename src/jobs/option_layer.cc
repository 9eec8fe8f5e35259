#include "jobs/option_layer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>

#include "base/error.h"
#include "jobs/option_value.h"
#include "jobs/yaml_document.h"

namespace cotune {

namespace {

constexpr size_t most_visited_nodes = 4'000'000;

std::string join_field(const std::string& field, const std::string& key) {
  return field.empty() ? shown(key) : field + "." + shown(key);
}

/// The one candidate that begins with the key, else the nearest by spelling; "" when none is near.
std::string likely_key(const std::string& key, const std::vector<std::string>& candidates) {
  if (key.size() > 60) return "";
  const auto begins = [&key](const std::string& candidate) { return candidate.starts_with(key); };
  if (key.size() >= 4 && std::count_if(candidates.begin(), candidates.end(), begins) == 1) {
    return *std::find_if(candidates.begin(), candidates.end(), begins);
  }
  return nearest_name(key, candidates);
}

/// The keys of a section, without other names, with those of the sections inside it.
std::vector<std::string> accepted_keys(Section section, bool in_defaults) {
  std::vector<std::string> accepted;
  for (const Option& option : option_table()) {
    if (option.section == section && (option.in_defaults || !in_defaults) && !option.is_recorded) accepted.push_back(option.key);
  }
  for (const Section nested : sections_in(section)) {
    if (!in_defaults || nested != Section::sweep) accepted.emplace_back(section_name(nested));
  }
  return accepted;
}

/// What stands in a section and is spelt much like the key; "" where nothing is.
std::string near_key(const std::string& key, Section section, bool in_defaults) {
  std::vector<std::string> candidates = accepted_keys(section, in_defaults);
  for (const Option& option : option_table()) {
    if (option.section == section) candidates.insert(candidates.end(), option.aliases.begin(), option.aliases.end());
  }
  return likely_key(key, candidates);
}

bool is_in_job(Section section) { return section != Section::model && section != Section::run; }

/// The section whose map has that key; nothing where none has.
std::optional<Section> section_called(const std::string& key) {
  for (const Section section : all_sections) {
    if (section != Section::job && section_name(section) == key) return section;
  }
  return std::nullopt;
}

/// Adds the names of a place that is below `defaults` too, or in entries of `jobs` alone.
void add_places(const std::string& below, bool in_defaults, std::vector<std::string>& places) {
  if (in_defaults) places.push_back("`defaults" + below + "`");
  places.push_back("`jobs[]" + below + "`");
}

/// Where the map of a job's section stands.
std::vector<std::string> places_of_section(Section section) {
  std::vector<std::string> places;
  if (section == Section::halving) return {"`jobs[].sweep`"};
  if (is_in_job(section)) add_places("", section != Section::sweep, places);
  return places;
}

/// Where options of that name stand. Those in the same job are named by their section alone.
std::vector<std::string> places_of_options(const std::string& key, std::optional<Section> from) {
  static constexpr Section likely_first[] = {Section::train,   Section::data, Section::adapter, Section::sweep,
                                             Section::halving, Section::job,  Section::model,   Section::run};
  std::vector<std::string> places;
  for (const Section section : likely_first) {
    const Option* option = find_option(section, key);
    if (section == from || option == nullptr || option->is_recorded) continue;
    const std::string path(section_path(section));
    const bool is_near = from && is_in_job(*from) && section != Section::job;
    if (!is_in_job(section) || is_near) {
      places.push_back("`" + path + "`");
    } else {
      add_places(section == Section::job ? "" : "." + path, option->in_defaults && section != Section::sweep && section != Section::halving, places);
    }
  }
  return places;
}

/// "`sweep` belongs under `jobs[]`"; "" of a key that belongs nowhere else. from: where it stands; nothing: at the top of the file.
std::string proper_place(const std::string& key, std::optional<Section> from) {
  const std::optional<Section> section = section_called(key);
  if (section && !is_in_job(*section)) return fmt::format("`{}` belongs at the top of the file", key);
  const std::vector<std::string> places = section ? places_of_section(*section) : places_of_options(key, from);
  if (places.empty()) return "";
  const std::string last = places.back();
  const std::span<const std::string> others(places.data(), places.size() - 1);
  return fmt::format("`{}` belongs under {}{}{}", shown(key), fmt::join(others, ", "), others.empty() ? "" : " or ", last);
}

}  // namespace

void MistakeList::add(const std::string& file, int line, const std::string& field, const std::string& message) {
  if (full_ || !seen_.insert(Diagnostic{file, line, field, message}.to_string()).second) return;
  if (seen_.size() > most) {
    full_ = true;
    mistakes_.add("", 0, "", fmt::format("only the first {} mistakes are shown", most));
    return;
  }
  mistakes_.add(file, line, field, message);
}

void MistakeList::add_superfluous(const std::string& file, int line, const std::string& field, const std::string& message) {
  const size_t item = items().size();
  add(file, line, field, message);
  if (items().size() > item && !full_) superfluous_.insert(item);
}

std::vector<SectionReader::Entry> SectionReader::entries(const YAML::Node& node, const std::string& field, int line) {
  std::vector<Entry> result;
  if (node.IsNull()) return result;
  if (!node.IsMap()) {
    mistakes_.add(file_, line, field, fmt::format("must be a map of options, got {}", node.IsSequence() ? "a list" : shown(node.Scalar())));
    return result;
  }
  std::map<std::string, int> first_lines;
  for (const auto& pair : node) {
    visit(1, line);
    const int key_line = line_of(pair.first);
    if (!pair.first.IsScalar()) {
      mistakes_.add(file_, key_line, field, "a key must be a text");
      continue;
    }
    Entry entry{pair.first.Scalar(), pair.second, key_line, join_field(field, pair.first.Scalar())};
    if (entry.key == "<<") {
      mistakes_.add(file_, key_line, entry.field,
                    "merge keys are not part of YAML 1.2; put what jobs share under `defaults`");
    } else if (const auto [first, is_new] = first_lines.emplace(entry.key, key_line); !is_new) {
      const std::string message = fmt::format("given twice; first in line {}", first->second);
      if (std::ranges::any_of(all_sections, [&](Section section) { return section_name(section) == entry.key; })) {
        mistakes_.add(file_, key_line, entry.field, message);
      } else {
        mistakes_.add_superfluous(file_, key_line, entry.field, message);
      }
    } else {
      result.push_back(std::move(entry));
    }
  }
  return result;
}

void SectionReader::read_section(Section section, const Entry& entry, OptionLevel level, OptionLayer& layer) {
  const bool in_defaults = level == OptionLevel::defaults;
  for (const Entry& child : entries(entry.value, entry.field, entry.line)) {
    const std::span<const Section> inside = sections_in(section);
    const auto nested = std::find_if(inside.begin(), inside.end(), [&](Section candidate) { return section_name(candidate) == child.key; });
    if (nested != inside.end()) {
      read_section(*nested, child, level, layer);
      continue;
    }
    const Option* option = find_option(section, child.key);
    if (option == nullptr) {
      report_unknown(section, child, level, layer);
    } else if (in_defaults && !option->in_defaults) {
      mistakes_.add(file_, child.line, child.field, fmt::format("every job needs its own `{}`", option->key));
    } else {
      read_option(*option, child, level, layer);
    }
  }
}

/// One that was meant for another option leaves that one open; else all is as it is given.
void SectionReader::report_unknown(Section section, const Entry& entry, OptionLevel level, OptionLayer& layer) {
  const bool in_defaults = level == OptionLevel::defaults;
  const std::string message = unknown_key_message(entry.key, section, in_defaults);
  if (!stands_for_another(entry.key, section, in_defaults)) return mistakes_.add_superfluous(file_, entry.line, entry.field, message);
  mistakes_.add(file_, entry.line, entry.field, message);
  const Option* meant = find_option(section, near_key(entry.key, section, in_defaults));
  if (meant == nullptr) return;
  GivenOption given{default_value(*meant), level, file_, entry.line, entry.field};
  given.is_mistaken = true;
  layer.emplace(meant, std::move(given));
}

void SectionReader::read_option(const Option& option, const Entry& entry, OptionLevel level, OptionLayer& layer) {
  visit(1 + (entry.value.IsSequence() || entry.value.IsMap() ? entry.value.size() : 0), entry.line);
  if (const auto earlier = layer.find(&option); earlier != layer.end()) {
    const std::string other = earlier->second.field;
    mistakes_.add_superfluous(file_, entry.line, entry.field,
                              fmt::format("the same option as `{}` in line {}: give one", other.substr(other.rfind('.') + 1),
                                          earlier->second.line));
    return;
  }
  GivenOption given{default_value(option), level, file_, entry.line, entry.field};
  if (entry.value.IsNull()) {
    given.is_null = true;
    layer.emplace(&option, std::move(given));
    return;
  }
  auto read = read_option_value(option, entry.value);
  if (const auto* mistake = std::get_if<ValueMistake>(&read)) {
    const auto add = [&](const ValueMistake& one) {
      mistakes_.add(file_, one.line > 0 ? one.line : entry.line, entry.field + one.field, one.message);
    };
    add(*mistake);
    std::for_each(mistake->more.begin(), mistake->more.end(), add);
    given.is_mistaken = true;
  } else {
    given.value = std::get<OptionValue>(std::move(read));
  }
  layer.emplace(&option, std::move(given));
}

void SectionReader::visit(size_t count, int line) {
  visited_ += count;
  if (visited_ <= most_visited_nodes) return;
  mistakes_.add(file_, line, "", fmt::format("aliases make this file larger than {} values", most_visited_nodes));
  mistakes_.throw_if_any();
}

bool stands_for_another(const std::string& key, Section section, bool in_defaults) {
  return !proper_place(key, section).empty() || !near_key(key, section, in_defaults).empty();
}

std::string unknown_key_message(const std::string& key, Section section, bool in_defaults) {
  if (const std::string proper = proper_place(key, section); !proper.empty()) return "unknown key; " + proper;
  const std::string near = near_key(key, section, in_defaults);
  if (!near.empty()) return fmt::format("unknown key; did you mean `{}`?", near);
  return fmt::format("unknown key; accepted: {}", fmt::join(accepted_keys(section, in_defaults), ", "));
}

std::string unknown_key_message(const std::string& key) {
  if (const std::string proper = proper_place(key, std::nullopt); !proper.empty()) return "unknown key; " + proper;
  return unknown_key_message(key, std::vector<std::string>{"cotune", "model", "run", "defaults", "jobs"});
}

std::string unknown_key_message(const std::string& key, const std::vector<std::string>& accepted) {
  const std::string near = likely_key(key, accepted);
  if (!near.empty()) return fmt::format("unknown key; did you mean `{}`?", near);
  return fmt::format("unknown key; accepted: {}", fmt::join(accepted, ", "));
}

}  // namespace cotune
