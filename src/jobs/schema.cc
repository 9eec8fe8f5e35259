#include "jobs/schema.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "jobs/base_name.h"
#include "jobs/option_table.h"
#include "jobs/option_value.h"

namespace cotune {

namespace {

using Json = nlohmann::ordered_json;

Json to_json(const OptionValue& value) {
  return std::visit(
      [](const auto& held) {
        if constexpr (std::is_same_v<std::decay_t<decltype(held)>, LengthsSpec>) {
          return held.histogram.empty() ? Json(held.counts) : Json(held.histogram);
        } else if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::vector<TrainFile>>) {
          Json files = Json::array();
          for (const TrainFile& file : held) files.push_back({{"path", file.path}, {"weight", file.weight}});
          return files;
        } else if constexpr (std::is_same_v<std::decay_t<decltype(held)>, std::vector<SweptField>>) {
          return Json::object();
        } else {
          return Json(held);
        }
      },
      value);
}

Json number_schema(const Accepted& accepted, bool is_whole) {
  Json schema = {{"type", is_whole ? "integer" : "number"}};
  const auto bound = [is_whole](double value) { return is_whole ? Json(static_cast<int64_t>(value)) : Json(value); };
  if (std::isfinite(accepted.low)) schema[accepted.low_open ? "exclusiveMinimum" : "minimum"] = bound(accepted.low);
  if (std::isfinite(accepted.high)) schema[accepted.high_open ? "exclusiveMaximum" : "maximum"] = bound(accepted.high);
  return schema;
}

/// A map from options of a job, or its sections, to what is tried for them.
Json swept_schema(const Json& tried) {
  return {{"type", "object"},
          {"propertyNames", {{"pattern", "^((data|adapter|train)([.][a-z0-9_]+)?|tenant|priority|deadline)$"}}},
          {"additionalProperties", tried},
          {"minProperties", 1}};
}

Json value_schema(const Option& option) {
  const Accepted& accepted = option.accepted;
  const Json text = {{"type", "string"}, {"minLength", 1}};
  switch (accepted.type) {
    case OptionType::identifier:
      return {{"type", {"string", "number"}}, {"pattern", "^[A-Za-z0-9_][A-Za-z0-9._-]*$"}, {"maxLength", 100}};
    case OptionType::time:
      return {{"type", "string"},
              {"pattern", "^\\d{4}-\\d{2}-\\d{2}(T\\d{2}:\\d{2}(:\\d{2})?(Z|[+-]\\d{2}:\\d{2})?)?$"}};
    case OptionType::memory:
      return {{"type", "string"}, {"pattern", "^(auto|[0-9.]+ ?(%|[KMGT]i?B))$"}};
    case OptionType::parallel: {
      const std::string part = "(([ptdv]p|len)=[1-9][0-9]*|seq|shard)", kind = fmt::format("{0}(,{0})*", part);
      return {{"type", "string"}, {"pattern", fmt::format("^(stages|auto|{0}([+]{0})*)$", kind)}};
    }
    case OptionType::choice: {
      Json choices = accepted.choices;
      for (const auto& [alias, choice] : accepted.choice_aliases) choices.push_back(alias);
      if (!accepted.may_be_emulated) return {{"enum", choices}};
      return {{"anyOf", {{{"enum", choices}}, {{"type", "string"}, {"pattern", "^emulated:."}}}}};
    }
    case OptionType::boolean: return {{"type", "boolean"}};
    case OptionType::whole:
      if (accepted.may_be_auto) return {{"anyOf", {number_schema(accepted, true), {{"enum", {"auto"}}}}}};
      return number_schema(accepted, true);
    case OptionType::seed:
      return {{"type", "integer"}, {"minimum", 0}, {"maximum", std::numeric_limits<uint64_t>::max()}};
    case OptionType::number: return number_schema(accepted, false);
    case OptionType::modules: return {{"anyOf", {text, {{"type", "array"}, {"items", text}, {"minItems", 1}}}}};
    case OptionType::wholes:
      return {{"anyOf", {number_schema(accepted, true), {{"type", "array"}, {"items", number_schema(accepted, true)}}}}};
    case OptionType::lengths:
      return {{"anyOf",
               {{{"type", "array"}, {"items", number_schema(accepted, true)}, {"minItems", 1}},
                {{"type", "object"},
                 {"propertyNames", {{"pattern", "^[1-9][0-9]*$"}}},
                 {"additionalProperties", {{"type", "integer"}, {"minimum", 1}}},
                 {"minProperties", 1}},
                text}}};
    case OptionType::files: {
      const Json path = {{"type", {"string", "number"}}, {"minLength", 1}};
      const Json entry = {{"type", "object"},
                          {"properties", {{"path", path}, {"weight", number_schema(accepted, false)}}},
                          {"required", {"path"}},
                          {"additionalProperties", false}};
      return {{"anyOf", {path, {{"type", "array"}, {"items", {{"anyOf", {path, entry}}}}, {"minItems", 1}}}}};
    }
    case OptionType::whole_by_module:
      return {{"type", "object"}, {"additionalProperties", number_schema(accepted, true)}};
    case OptionType::number_by_module:
      return {{"type", "object"}, {"additionalProperties", number_schema(accepted, false)}};
    case OptionType::grid: return swept_schema({{"type", "array"}, {"minItems", 1}});
    case OptionType::distributions: {
      const Json ends = {{"type", "array"}, {"items", {{"type", "number"}}}, {"minItems", 2}, {"maxItems", 2}};
      const Json range = {{"type", "object"},
                          {"properties", {{"uniform", ends}, {"log_uniform", ends}, {"step", {{"type", "number"}, {"exclusiveMinimum", 0}}}}},
                          {"additionalProperties", false},
                          {"minProperties", 1}};
      return swept_schema({{"anyOf", {{{"type", "array"}, {"minItems", 1}}, range}}});
    }
    case OptionType::swept_values: return swept_schema(Json::object());
    default: break;
  }
  // YAML reads an unquoted `123` as a number; as a name or path it is text all the same.
  return {{"type", {"string", "number"}}, {"minLength", 1}};
}

std::string description_of(const Option& option) {
  return option.condition ? fmt::format("({}) {}", option.condition->summary, option.description) : option.description;
}

/// The schema, with null for "as if it were not given".
Json or_null(Json schema) {
  if (schema.contains("enum")) {
    schema["enum"].push_back(nullptr);
  } else if (schema.contains("anyOf")) {
    schema["anyOf"].push_back({{"type", "null"}});
  } else {
    Json types = schema["type"].is_array() ? schema["type"] : Json::array({schema["type"]});
    types.push_back("null");
    schema["type"] = std::move(types);
  }
  return schema;
}

Json option_schema(const Option& option) {
  Json schema = option.required ? value_schema(option) : or_null(value_schema(option));
  schema["description"] = description_of(option);
  if (option.input_only || !option.default_note.empty()) return schema;
  const OptionValue value = default_value(option);
  const bool is_absent = is_unset(value) && to_json(value).is_structured();
  if (!is_absent && to_json(value) != Json("")) schema["default"] = to_json(value);
  return schema;
}

Json section_schema(Section section, bool in_defaults) {
  Json properties = Json::object();
  for (const Option& option : option_table()) {
    if (option.section != section || (in_defaults && !option.in_defaults)) continue;
    properties[option.key] = option_schema(option);
    for (const std::string& alias : option.aliases) {
      properties[alias] = or_null(value_schema(option));
      properties[alias]["description"] = fmt::format("Another name of `{}`.", option.key);
    }
  }
  return {{"type", {"object", "null"}}, {"additionalProperties", false}, {"properties", properties}};
}

void refer_to_sections_in(Section section, bool in_defaults, Json& schema) {
  for (const Section nested : sections_in(section)) {
    if (in_defaults && nested == Section::sweep) continue;
    schema["properties"][section_name(nested)] = {{"$ref", fmt::format("#/$defs/{}", section_name(nested))}};
  }
}

Json job_schema(bool in_defaults) {
  Json schema = section_schema(Section::job, in_defaults);
  refer_to_sections_in(Section::job, in_defaults, schema);
  if (in_defaults) {
    schema["description"] = "What every job has that does not say otherwise.";
  } else {
    schema["type"] = "object";
    schema["required"] = {"name"};
    schema["properties"]["name"]["not"] = {{"const", base_name}};
  }
  return schema;
}

/// A `|` would end the table's cell.
std::string cell(const std::string& text) {
  std::string escaped;
  for (char c : text) {
    if (c == '|') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string accepted_cell(const Option& option) {
  const Accepted& accepted = option.accepted;
  if (accepted.type != OptionType::choice) return accepted_text(option);
  std::string text;
  for (const std::string& choice : accepted.choices) text += fmt::format("{}`{}`", text.empty() ? "" : ", ", choice);
  if (accepted.may_be_emulated) text += ", `emulated:FILE`";
  for (const auto& [alias, choice] : accepted.choice_aliases) text += fmt::format("; `{}` is `{}`", alias, choice);
  return text;
}

}  // namespace

std::string jobs_file_schema() {
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "cotune jobs file"},
                 {"description",
                  "Several fine-tuning jobs on one frozen language model. Generated from src/jobs/options."},
                 {"type", "object"},
                 {"additionalProperties", false},
                 {"required", {"cotune", "jobs"}}};
  Json& properties = schema["properties"];
  properties["cotune"] = {{"const", 1}, {"description", "The version of the file's format."}};
  for (const Option& option : option_table()) {
    for (const std::string& alias : option.root_aliases) {
      properties[alias] = value_schema(option);
      properties[alias]["description"] = fmt::format("Another name of `{}`.", option.path());
    }
  }
  properties["model"] = section_schema(Section::model, false);
  properties["run"] = section_schema(Section::run, false);
  properties["defaults"] = job_schema(true);
  properties["defaults"]["type"] = {"object", "null"};
  properties["jobs"] = {{"type", "array"}, {"minItems", 1}, {"items", job_schema(false)}};
  for (Section nested : all_sections) {
    if (nested < Section::data) continue;
    Json& section = schema["$defs"][std::string(section_name(nested))] = section_schema(nested, false);
    refer_to_sections_in(nested, false, section);
  }
  return schema.dump(2) + "\n";
}

std::string option_tables_markdown() {
  std::string text;
  for (Section section : all_sections) {
    text += fmt::format("{}### `{}{}`\n\n", text.empty() ? "" : "\n", section >= Section::data ? "jobs[]." : "",
                        section_path(section));
    text += "| key | accepted | default | meaning |\n|---|---|---|---|\n";
    for (const Option& option : option_table()) {
      if (option.section != section) continue;
      std::string names = fmt::format("`{}`", option.key);
      for (const std::string& alias : option.aliases) names += fmt::format(", `{}`", alias);
      for (const std::string& alias : option.root_aliases) names += fmt::format(", `{}` at the top of the file", alias);
      const std::string condition = option.condition ? fmt::format(" ({})", option.condition->summary) : "";
      text += fmt::format("| {} | {} | {} | {} |\n", names, cell(accepted_cell(option)), cell(default_text(option)),
                          cell(option.description + condition));
    }
  }
  return text;
}

}  // namespace cotune
