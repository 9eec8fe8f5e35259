#include "data/dataset_facts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_text.h"
#include "jobs/enum_names.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

constexpr std::array<std::pair<const char*, int64_t FileReport::*>, 15> counts = {{
    {"records", &FileReport::records},
    {"malformed", &FileReport::malformed},
    {"too_long", &FileReport::too_long},
    {"repaired", &FileReport::repaired},
    {"padded", &FileReport::padded},
    {"truncated", &FileReport::truncated},
    {"dropped_long", &FileReport::dropped_long},
    {"dropped_unlearned", &FileReport::dropped_unlearned},
    {"chats", &FileReport::chats},
    {"without_tool_calls", &FileReport::without_tool_calls},
    {"without_tools", &FileReport::without_tools},
    {"without_system", &FileReport::without_system},
    {"without_history", &FileReport::without_history},
    {"without_context", &FileReport::without_context},
    {"with_special_texts", &FileReport::with_special_texts},
}};

FileReport report_of(const Json& json) {
  FileReport report;
  const auto format = json.at("format").get<std::string>();
  const auto found = std::find(enum_names<DataFormat>.begin(), enum_names<DataFormat>.end(), format);
  if (found == enum_names<DataFormat>.end()) throw_user_error("is damaged: there is no data format `{}`", format);
  report.format = static_cast<DataFormat>(found - enum_names<DataFormat>.begin());
  report.format_line = json.at("format_line").get<int>();
  for (const auto& [name, count] : counts) report.*count = json.value(name, int64_t{0});
  report.special_text = json.value("special_text", "");
  return report;
}

Json json_of(const FileReport& report) {
  Json json = {{"format", name_of(report.format)}, {"format_line", report.format_line}};
  for (const auto& [name, count] : counts) json[name] = report.*count;
  if (!report.special_text.empty()) json["special_text"] = report.special_text;
  return json;
}

}  // namespace

std::string to_json(const DatasetFacts& facts) {
  Json json = {{"files", Json::array()}, {"train", facts.sources[0]}, {"eval", facts.sources[1]}, {"paths", facts.original_paths},
               {"train_hashes", facts.source_hashes[0]}, {"eval_hashes", facts.source_hashes[1]}};
  for (const FileReport& report : facts.reports) json["files"].push_back(json_of(report));
  return text_of_json(json);
}

DatasetFacts facts_of(std::string_view text) {
  try {
    const Json json = Json::parse(text);
    DatasetFacts facts;
    for (const Json& file : json.at("files")) facts.reports.push_back(report_of(file));
    json.at("train").get_to(facts.sources[0]);
    json.at("eval").get_to(facts.sources[1]);
    json.at("paths").get_to(facts.original_paths);
    facts.source_hashes = {json.value("train_hashes", std::vector<std::string>()), json.value("eval_hashes", std::vector<std::string>())};
    return facts;
  } catch (const Json::exception&) {
    throw_user_error("is damaged: its facts cannot be read");
  }
}

}  // namespace cotune
