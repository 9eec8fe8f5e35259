/// The tokenizer's data in a GGUF file (keys `tokenizer.ggml.*`).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/gguf.h"

namespace cotune {

struct GgufVocabulary {
  std::string model;                 ///< "gpt2" for byte-level BPE
  std::string pre;                   ///< name of the split: "smollm", "llama-bpe", "qwen2", "gpt-2", …; "" when absent
  std::vector<std::string> tokens;   ///< token text by id, in the byte-level alphabet where the model is "gpt2"
  std::vector<int32_t> token_types;  ///< 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; as many as tokens
  std::vector<std::string> merges;   ///< "left right", best first
  std::optional<int32_t> bos, eos, eot, pad, unk;
  bool add_bos = false, add_eos = false, add_space_prefix = false;
};

/// Nothing when the file has no `tokenizer.ggml.tokens`. Throws UserError naming file and key when fields have wrong
/// types, when there are not as many token types as tokens, or when a special id is not the id of a token.
std::optional<GgufVocabulary> read_gguf_vocabulary(const GgufFile& file);

}  // namespace cotune
