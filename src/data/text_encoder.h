/// What making examples needs of a tokenizer. An interface, so that chat templates and readers are tested without a
/// vocabulary.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_added_tokens.h"

namespace cotune {

/// An added token at bytes [begin, end) of a text.
struct SpecialMatch {
  size_t begin = 0;
  size_t end = 0;
  int32_t id = 0;
  bool lstrip = false, rstrip = false;  ///< swallows the white space before it, behind it
  bool is_special = true;               ///< else an added token as texts may have it
  bool operator==(const SpecialMatch&) const = default;
};

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  /// Tokens of a text in which nothing is special (Tokenizer::encode_plain). at_text_start: false for what stands behind a special token.
  virtual std::vector<int32_t> encode_plain(std::string_view text, bool at_text_start = true) const = 0;
  /// Tokenizer::marks_spaces: a text that goes on behind another is then to be encoded together with it.
  virtual bool marks_spaces() const { return false; }
  /// The added tokens in a text, in order, leftmost and longest first, not overlapping.
  virtual std::vector<SpecialMatch> find_special(std::string_view text) const = 0;
  /// The bytes that a token stands for. Over the tokens of a text they join to the text, with a space before it where
  /// marks_spaces(), unless the tokenizer changes the text first (normalisation).
  virtual std::string token_bytes(int32_t id) const = 0;
  /// What belongs before a text that no template frames (the beginning-of-text token of models that have one).
  virtual std::vector<int32_t> prefix() const = 0;
  /// The end-of-text token that a completion or plain text ends with.
  virtual std::optional<int32_t> eos_id() const = 0;
  /// Throws UserError that says what is missing where there is no tokenizer at all: then texts cannot be given to the others.
  virtual void need_tokenizer() const {}
  /// Encoders with an equal one give equal tokens for every text, in every run of the program.
  virtual std::string hash() const = 0;
};

/// A Tokenizer as encoder. find_special finds added tokens by their text alone, whatever stands around them (`single_word`).
class TokenizerEncoder : public TextEncoder {
 public:
  /// The tokenizer must outlive the encoder. `eos_id`: from the model's configuration.
  TokenizerEncoder(const Tokenizer& tokenizer, std::optional<int32_t> eos_id);

  std::vector<int32_t> encode_plain(std::string_view text, bool at_text_start = true) const override;
  bool marks_spaces() const override { return tokenizer_.marks_spaces(); }
  std::vector<SpecialMatch> find_special(std::string_view text) const override;
  /// `<700>` of an id that the tokenizer has no token for, as data of token ids may have: models have more rows than tokens.
  std::string token_bytes(int32_t id) const override;
  std::vector<int32_t> prefix() const override { return tokenizer_.prefix_ids(); }
  std::optional<int32_t> eos_id() const override { return eos_id_; }
  std::string hash() const override;

 private:
  const Tokenizer& tokenizer_;
  std::optional<int32_t> eos_id_;
  AddedTokenMatcher added_;
  std::map<int32_t, std::pair<bool, bool>> strips_;  ///< lstrip, rstrip of tokens that have one
};

}  // namespace cotune
