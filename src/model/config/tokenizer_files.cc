#include "model/config/tokenizer_files.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_mistake.h"
#include "base/lfs_pointer.h"

namespace cotune {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

/// The object in a file; an empty one when there is no file.
Json read_object(const fs::path& path) {
  if (!fs::exists(path)) return Json::object();
  const std::string text = read_file(path);
  refuse_lfs_pointer(text, path.string());
  Json document = json_of_file(text, path.string());
  if (!document.is_object()) throw_user_error("{}: must be a JSON object", path.string());
  return document;
}

/// A special token: a string, or an object with `content`.
std::optional<std::string> token_text(const Json& document, const char* field, const fs::path& path) {
  const auto found = document.find(field);
  if (found == document.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) {
    return (*found)["content"].get<std::string>();
  }
  throw_user_error("{}: {}: accepted: a string, or an object with a string 'content'", path.string(), field);
}

constexpr const char* default_template = "default";
constexpr const char* tool_use_template = "tool_use";

/// Jinja sources by name.
using Templates = std::map<std::string, std::string>;

/// `chat_template`: a template, or a list of {name, template}.
Templates templates_of(const Json& document, const fs::path& path) {
  const auto found = document.find("chat_template");
  if (found == document.end() || found->is_null()) return {};
  if (found->is_string()) return {{default_template, found->get<std::string>()}};
  Templates templates;
  if (found->is_array()) {
    for (const Json& entry : *found) {
      if (entry.is_object() && entry.contains("name") && entry["name"].is_string() && entry.contains("template") &&
          entry["template"].is_string()) {
        templates[entry["name"]] = entry["template"];
      }
    }
  }
  if (!templates.empty()) return templates;
  throw_user_error("{}: chat_template: accepted: a string, or a list of objects with 'name' and 'template'", path.string());
}

/// chat_template.jinja, and the files of additional_chat_templates by their names.
Templates template_files_in(const fs::path& folder) {
  Templates templates;
  const fs::path own = folder / chat_template_file, others = folder / more_chat_templates_folder;
  if (fs::is_directory(others)) {
    for (const fs::directory_entry& entry : fs::directory_iterator(others)) {
      if (entry.is_regular_file() && entry.path().extension() == ".jinja")
        templates[entry.path().stem().string()] = read_file(entry.path());
    }
  }
  if (fs::exists(own)) templates[default_template] = read_file(own);
  return templates;
}

void add_generation_eos(const fs::path& path, std::vector<int32_t>& ids) {
  const Json generation = read_object(path);
  const auto found = generation.find("eos_token_id");
  if (found == generation.end() || found->is_null()) return;
  const Json list = found->is_array() ? *found : Json::array({*found});
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t{INT32_MAX}) {
      throw_user_error("{}: eos_token_id: accepted: a token id or a list of token ids", path.string());
    }
    ids.push_back(id.get<int32_t>());
  }
}

/// The id of a token among `added_tokens` and `model.vocab` of tokenizer.json.
std::optional<int32_t> id_in_tokenizer(const fs::path& path, const std::string& token) {
  const Json tokenizer = read_object(path);
  const auto id_of = [](const Json& id) -> std::optional<int32_t> {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t{INT32_MAX}) return std::nullopt;
    return id.get<int32_t>();
  };
  if (const auto added = tokenizer.find("added_tokens"); added != tokenizer.end() && added->is_array()) {
    for (const Json& entry : *added) {
      if (entry.is_object() && entry.contains("id") && entry.value("content", Json()) == Json(token))
        return id_of(entry["id"]);
    }
  }
  const auto model = tokenizer.find("model");
  if (model == tokenizer.end() || !model->is_object()) return std::nullopt;
  const auto vocabulary = model->find("vocab");
  if (vocabulary == model->end() || !vocabulary->is_object()) return std::nullopt;
  const auto found = vocabulary->find(token);
  return found == vocabulary->end() ? std::nullopt : id_of(*found);
}

void sort_without_doubles(std::vector<int32_t>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

TokenizerFiles find_tokenizer_files(const fs::path& folder, const std::vector<int32_t>& eos_token_ids) {
  TokenizerFiles files;
  const fs::path tokenizer = folder / "tokenizer.json", settings_path = folder / "tokenizer_config.json";
  const fs::path special_path = folder / "special_tokens_map.json";
  if (fs::exists(tokenizer)) files.tokenizer_json = tokenizer;

  const Json settings = read_object(settings_path), special = read_object(special_path);
  const auto text = [&](const char* field) {
    auto found = token_text(settings, field, settings_path);
    if (!found) found = token_text(special, field, special_path);
    return found.value_or("");
  };
  files.bos_token = text("bos_token");
  files.eos_token = text("eos_token");
  files.pad_token = text("pad_token");
  files.unk_token = text("unk_token");
  Templates templates = template_files_in(folder);
  if (templates.empty()) templates = templates_of(settings, settings_path);
  files.chat_template = templates[default_template];
  files.tool_use_template = templates[tool_use_template];
  if (const auto add_bos = settings.find("add_bos_token");
      add_bos != settings.end() && add_bos->is_boolean()) {
    files.add_bos_token = add_bos->get<bool>();
  }

  files.end_of_turn_ids = eos_token_ids;
  add_generation_eos(folder / "generation_config.json", files.end_of_turn_ids);
  if (files.tokenizer_json && !files.eos_token.empty()) {
    if (const auto id = id_in_tokenizer(tokenizer, files.eos_token)) files.end_of_turn_ids.push_back(*id);
  }
  sort_without_doubles(files.end_of_turn_ids);
  return files;
}

TokenizerFiles tokenizer_files_of(const GgufFile& file) {
  TokenizerFiles files;
  files.gguf = read_gguf_vocabulary(file);
  files.chat_template = file.text("tokenizer.chat_template").value_or("");
  files.tool_use_template = file.text("tokenizer.chat_template.tool_use").value_or("");
  if (!files.gguf) return files;
  const GgufVocabulary& vocabulary = *files.gguf;
  const auto text = [&](int32_t id) {
    return id < 0 ? std::string() : vocabulary.tokens[static_cast<size_t>(id)];
  };
  files.bos_token = text(vocabulary.bos);
  files.eos_token = text(vocabulary.eos);
  files.pad_token = text(vocabulary.pad);
  files.unk_token = text(vocabulary.unk);
  files.add_bos_token = vocabulary.add_bos;
  for (const int32_t id :
       {vocabulary.eos, gguf_token_id(file, "tokenizer.ggml.eot_token_id", vocabulary.tokens.size())}) {
    if (id >= 0) files.end_of_turn_ids.push_back(id);
  }
  sort_without_doubles(files.end_of_turn_ids);
  return files;
}

}  // namespace cotune
