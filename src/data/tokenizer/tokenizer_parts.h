/// What a tokenizer is made of; built by tokenizer_json.cc and tokenizer_gguf.cc, used by tokenizer.cc, written by tokenizer_json_writer.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/bpe.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_added_tokens.h"
#include "data/tokenizer/tokenizer_decoder.h"
#include "data/tokenizer/tokenizer_normalizer.h"

namespace cotune {

struct TokenizerParts {
  enum class TokenKind : uint8_t { absent, model, added, special };

  TokenizerNormalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<const BpeModel> model;
  DecoderRules decoder;
  std::vector<int32_t> prefix_ids, suffix_ids;

  /// Added tokens that a text is searched for.
  struct Matchers {
    AddedTokenMatcher raw;         ///< before normalizing
    AddedTokenMatcher normalized;  ///< and after it
  };
  Matchers all, not_special;
  std::vector<AddedToken> added;
  std::vector<std::string> tokens;         ///< by id
  std::vector<std::string> decoded_texts;  ///< by id, what the decoder gets; "" where it is the same as in `tokens`
  std::vector<TokenKind> kinds;            ///< by id

  /// Fills the matchers and the tables by id from `model_vocabulary` and `added`; the normalizer must be set. Ids must
  /// be at least 0 (checked by the caller).
  void index_tokens(const TokenIds& model_vocabulary);

  bool has_token(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < kinds.size() && kinds[id] != TokenKind::absent;
  }
  const std::string& text_to_decode(int32_t id) const {
    return decoded_texts[id].empty() ? tokens[id] : decoded_texts[id];
  }
};

/// The largest id accepted for a vocabulary of this many tokens: ids far beyond it are damage, and tables are by id.
inline int64_t largest_token_id(size_t token_count) { return static_cast<int64_t>(token_count) + 200'000; }

/// Both throw UserError that names `name` and the place in it.
std::shared_ptr<const TokenizerParts> tokenizer_parts_from_json(std::string_view json, std::string_view name);
std::shared_ptr<const TokenizerParts> tokenizer_parts_from_gguf(const GgufVocabulary& vocabulary,
                                                               std::string_view name);

/// The text of a tokenizer.json; tokenizer_parts_from_json gives the same parts of it.
std::string tokenizer_json_of(const TokenizerParts& parts);

}  // namespace cotune
