/// Where the text side of a model is: its tokenizer, chat template and special tokens, as found beside the
/// weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "model/config/gguf_vocabulary.h"

namespace cotune {

struct ModelConfig;

/// Where folders have chat templates beside tokenizer_config.json.
inline constexpr const char *chat_template_file = "chat_template.jinja", *more_chat_templates_folder = "additional_chat_templates";

struct TokenizerFiles {
  std::optional<std::filesystem::path> tokenizer_json;  ///< of a Hugging Face folder
  std::optional<GgufVocabulary> gguf;                   ///< of a GGUF file
  std::string chat_template;                            ///< Jinja source; "" when the model has none
  std::string tool_use_template;                        ///< for chats with tools; "": the same as for others
  std::string bos_token;                                ///< texts; "" when the model has none
  std::string eos_token;
  std::string pad_token;
  std::string unk_token;
  std::optional<bool> add_bos_token;     ///< of tokenizer_config.json or GGUF, where it says
  std::vector<int32_t> end_of_turn_ids;  ///< tokens at which generation stops; sorted, without doubles
};

/// Reads tokenizer_config.json, special_tokens_map.json and generation_config.json of a Hugging Face folder, each where
/// present, and looks up the ids of the eos token in tokenizer.json. `eos_token_ids` are config.json's. The templates are
/// those that transformers takes: chat_template.jinja and additional_chat_templates/tool_use.jinja; where there is no such
/// file, those of tokenizer_config.json. Throws UserError naming the file and field where one is malformed.
TokenizerFiles find_tokenizer_files(const std::filesystem::path& folder,
                                    const std::vector<int32_t>& eos_token_ids);

/// The same from the metadata of a GGUF file. Throws UserError naming file and key.
TokenizerFiles tokenizer_files_of(const GgufFile& file);

/// What a Hugging Face folder has in place of a GGUF file's metadata, as texts by the names of files: tokenizer.json, tokenizer_config.json
/// and generation_config.json of a vocabulary, and the templates. By them find_tokenizer_files, cotune's tokenizer and transformers give what
/// the GGUF file's do. `files` and `config` are those of the GGUF file `name`; throws UserError for a vocabulary that cotune cannot read.
std::map<std::string, std::string> format_tokenizer_files(const TokenizerFiles& files, const ModelConfig& config, const std::string& name);

}  // namespace cotune
