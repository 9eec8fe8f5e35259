#include "model/config/gguf_vocabulary.h"

#include "base/error.h"

namespace cotune {

int32_t gguf_token_id(const GgufFile& file, std::string_view key, size_t token_count) {
  const auto value = file.integer(key);
  if (!value) return -1;
  if (*value < 0 || *value >= static_cast<int64_t>(token_count)) {
    throw_user_error("{}: {}: found {}; accepted: the id of one of the {} tokens", file.path().string(), key,
                     *value, token_count);
  }
  return static_cast<int32_t>(*value);
}

std::optional<GgufVocabulary> read_gguf_vocabulary(const GgufFile& file) {
  auto tokens = file.texts("tokenizer.ggml.tokens");
  if (!tokens) return std::nullopt;
  GgufVocabulary vocabulary;
  vocabulary.tokens = std::move(*tokens);
  vocabulary.model = file.text("tokenizer.ggml.model").value_or("");
  vocabulary.pre = file.text("tokenizer.ggml.pre").value_or("");
  vocabulary.merges = file.texts("tokenizer.ggml.merges").value_or(std::vector<std::string>{});
  const size_t count = vocabulary.tokens.size();
  if (const auto types = file.integers("tokenizer.ggml.token_type")) {
    if (types->size() != count) {
      throw_user_error("{}: tokenizer.ggml.token_type: {} types for {} tokens", file.path().string(),
                       types->size(), count);
    }
    const std::string name = file.path().string();
    for (size_t i = 0; i < count; ++i) vocabulary.token_types.push_back(gguf_token_type((*types)[i], i, name));
  }
  if (const auto scores = file.numbers("tokenizer.ggml.scores"); scores && vocabulary.model == "llama") {
    if (scores->size() != count) {
      throw_user_error("{}: tokenizer.ggml.scores: {} scores for {} tokens", file.path().string(), scores->size(), count);
    }
    vocabulary.scores.assign(scores->begin(), scores->end());
  }
  vocabulary.bos = gguf_token_id(file, "tokenizer.ggml.bos_token_id", count);
  vocabulary.eos = gguf_token_id(file, "tokenizer.ggml.eos_token_id", count);
  vocabulary.pad = gguf_token_id(file, "tokenizer.ggml.padding_token_id", count);
  vocabulary.unk = gguf_token_id(file, "tokenizer.ggml.unknown_token_id", count);
  vocabulary.add_bos = file.boolean("tokenizer.ggml.add_bos_token");
  vocabulary.add_eos = file.boolean("tokenizer.ggml.add_eos_token").value_or(false);
  vocabulary.add_space_prefix = file.boolean("tokenizer.ggml.add_space_prefix");
  return vocabulary;
}

}  // namespace cotune
