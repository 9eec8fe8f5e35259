/// The tokenizer's data in a GGUF file (keys `tokenizer.ggml.*`).
#pragma once

#include <optional>

#include "data/tokenizer/tokenizer.h"
#include "formats/gguf.h"

namespace cotune {

/// Nothing when the file has no `tokenizer.ggml.tokens`. Throws UserError naming file and key when fields
/// have wrong types, when there are not as many token types or scores as tokens, or when a special id is not the id
/// of a token.
std::optional<GgufVocabulary> read_gguf_vocabulary(const GgufFile& file);

/// The value of a key such as `tokenizer.ggml.eot_token_id`; -1 when absent. Throws UserError unless it is
/// the id of one of `token_count` tokens.
int32_t gguf_token_id(const GgufFile& file, std::string_view key, size_t token_count);

}  // namespace cotune
