#include "formats/gguf_vocabulary.h"

#include "base/error.h"

namespace cotune {

std::optional<GgufVocabulary> read_gguf_vocabulary(const GgufFile& file) {
  auto tokens = file.texts("tokenizer.ggml.tokens");
  if (!tokens) return std::nullopt;
  GgufVocabulary vocabulary;
  vocabulary.tokens = std::move(*tokens);
  vocabulary.model = file.text("tokenizer.ggml.model").value_or("");
  vocabulary.pre = file.text("tokenizer.ggml.pre").value_or("");
  vocabulary.merges = file.texts("tokenizer.ggml.merges").value_or(std::vector<std::string>{});
  const auto types = file.integers("tokenizer.ggml.token_type");
  if (types && types->size() != vocabulary.tokens.size()) {
    throw_user_error("{}: tokenizer.ggml.token_type: {} types for {} tokens", file.path().string(), types->size(),
                     vocabulary.tokens.size());
  }
  vocabulary.token_types.assign(vocabulary.tokens.size(), 1);
  for (size_t i = 0; types && i < types->size(); ++i) {
    if ((*types)[i] < 0 || (*types)[i] > 6) {
      throw_user_error("{}: tokenizer.ggml.token_type[{}]: found {}, accepted: 0 to 6", file.path().string(), i, (*types)[i]);
    }
    vocabulary.token_types[i] = static_cast<int32_t>((*types)[i]);
  }
  const auto id = [&](const char* key) -> std::optional<int32_t> {
    const auto value = file.integer(key);
    if (!value) return std::nullopt;
    if (*value < 0 || *value >= static_cast<int64_t>(vocabulary.tokens.size())) {
      throw_user_error("{}: {}: found {}, accepted: the id of one of the {} tokens", file.path().string(), key, *value,
                       vocabulary.tokens.size());
    }
    return static_cast<int32_t>(*value);
  };
  vocabulary.bos = id("tokenizer.ggml.bos_token_id");
  vocabulary.eos = id("tokenizer.ggml.eos_token_id");
  vocabulary.eot = id("tokenizer.ggml.eot_token_id");
  vocabulary.pad = id("tokenizer.ggml.padding_token_id");
  vocabulary.unk = id("tokenizer.ggml.unknown_token_id");
  vocabulary.add_bos = file.boolean("tokenizer.ggml.add_bos_token").value_or(false);
  vocabulary.add_eos = file.boolean("tokenizer.ggml.add_eos_token").value_or(false);
  vocabulary.add_space_prefix = file.boolean("tokenizer.ggml.add_space_prefix").value_or(false);
  return vocabulary;
}

}  // namespace cotune
