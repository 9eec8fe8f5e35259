/// Where the text side of a model is: its tokenizer, chat template and special tokens, as found beside the
/// weights.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/config/gguf_vocabulary.h"

namespace cotune {

struct TokenizerFiles {
  std::optional<std::filesystem::path> tokenizer_json;  ///< of a Hugging Face folder
  std::optional<GgufVocabulary> gguf;                   ///< of a GGUF file
  std::string chat_template;                            ///< Jinja source; "" when the model has none
  std::string bos_token;                                ///< texts; "" when the model has none
  std::string eos_token;
  std::string pad_token;
  std::string unk_token;
  std::optional<bool> add_bos_token;     ///< of tokenizer_config.json or GGUF, where it says
  std::vector<int32_t> end_of_turn_ids;  ///< tokens at which generation stops; sorted, without doubles
};

/// Reads tokenizer_config.json, chat_template.jinja (which wins), special_tokens_map.json and
/// generation_config.json of a Hugging Face folder, each where present, and looks up the ids of the eos token
/// in tokenizer.json. `eos_token_ids` are config.json's. Throws UserError naming the file and field where one
/// is malformed.
TokenizerFiles find_tokenizer_files(const std::filesystem::path& folder,
                                    const std::vector<int32_t>& eos_token_ids);

/// The same from the metadata of a GGUF file. Throws UserError naming file and key.
TokenizerFiles tokenizer_files_of(const GgufFile& file);

}  // namespace cotune
