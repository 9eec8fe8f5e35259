#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/config/model_config.h"
#include "model/config/tokenizer_files.h"

namespace cotune {
namespace {

using Json = nlohmann::ordered_json;

/// The class of transformers that takes tokenizer.json as it is, by the name that versions 4 and 5 know.
constexpr const char* tokenizer_class = "PreTrainedTokenizerFast";

std::string tokenizer_config(const TokenizerFiles& files, const Tokenizer& tokenizer, const ModelConfig& config) {
  Json json = {{"tokenizer_class", tokenizer_class},
               {"model_max_length", config.context_length},
               {"clean_up_tokenization_spaces", false},
               {"add_bos_token", !tokenizer.prefix_ids().empty()},
               {"add_eos_token", !tokenizer.suffix_ids().empty()}};
  for (const auto& [field, token] : {std::pair{"bos_token", files.bos_token}, std::pair{"eos_token", files.eos_token},
                                     std::pair{"pad_token", files.pad_token}, std::pair{"unk_token", files.unk_token}}) {
    if (!token.empty()) json[field] = token;
  }
  return json.dump(2) + "\n";
}

std::string generation_config(const TokenizerFiles& files, const ModelConfig& config) {
  Json json = Json::object();
  if (config.bos_token_id) json["bos_token_id"] = *config.bos_token_id;
  if (!files.end_of_turn_ids.empty()) json["eos_token_id"] = files.end_of_turn_ids;
  if (files.gguf->pad >= 0) json["pad_token_id"] = files.gguf->pad;
  return json.dump(2) + "\n";
}

}  // namespace

std::map<std::string, std::string> format_tokenizer_files(const TokenizerFiles& files, const ModelConfig& config, const std::string& name) {
  COTUNE_CHECK(!files.tokenizer_json, "{} has files of its own", name);
  std::map<std::string, std::string> texts;
  if (files.gguf) {
    const Tokenizer tokenizer = Tokenizer::from_gguf(*files.gguf, name);
    texts["tokenizer.json"] = tokenizer.to_json();
    texts["tokenizer_config.json"] = tokenizer_config(files, tokenizer, config);
    texts["generation_config.json"] = generation_config(files, config);
  }
  if (!files.chat_template.empty()) texts[chat_template_file] = files.chat_template;
  if (!files.tool_use_template.empty()) texts[fmt::format("{}/tool_use.jinja", more_chat_templates_folder)] = files.tool_use_template;
  return texts;
}

}  // namespace cotune
