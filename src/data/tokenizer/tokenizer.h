/// Text to token ids and back, equal token for token to the Hugging Face `tokenizers` library (0.23).
///
/// Sources: tokenizer.json with a BPE model (GPT-2, Llama 2 and 3, Mistral, Qwen 2 and 2.5, SmolLM, DeepSeek and others
/// made of the same parts), and the vocabulary of a GGUF file: byte-level with the splits of GPT-2, Llama 3, Qwen 2 and SmolLM, or made
/// after SentencePiece's BPE (Llama 2, TinyLlama, Mistral), which gives the tokens of these models' tokenizer.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer/tokenizer_added_tokens.h"
#include "data/tokenizer/tokenizer_decoder.h"

namespace cotune {

struct TokenizerParts;

/// The tokenizer.ggml.* keys of a GGUF file.
struct GgufVocabulary {
  std::string model = "gpt2";        ///< tokenizer.ggml.model: "gpt2" (byte-level BPE) or "llama" (SentencePiece's BPE)
  std::string pre;                   ///< tokenizer.ggml.pre of gpt2: which split; see gguf_pre_tokenizers()
  std::vector<std::string> tokens;   ///< by id, gpt2: byte-level characters (byte_to_character); llama: ▁ for a space
  std::vector<int32_t> token_types;  ///< 0 undefined (as normal), 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused, 6 byte; or empty
  std::vector<std::string> merges;   ///< "left right", best first; llama without any: every pair of tokens whose text is a token's
  std::vector<float> scores;         ///< by id, of llama without merges: the token of the highest score is merged first
  int32_t bos = -1, eos = -1, pad = -1, unk = -1;  ///< -1: absent
  std::optional<bool> add_bos;                     ///< absent: what the split's family does (Llama 3 and llama: yes, others: no)
  bool add_eos = false;
  std::optional<bool> add_space_prefix;  ///< absent: llama yes, gpt2 no
};

/// A number of tokenizer.ggml.token_type as GgufVocabulary has it. Throws UserError naming file, place and what is accepted.
int32_t gguf_token_type(int64_t number, size_t place, std::string_view name_for_errors);

/// The accepted values of tokenizer.ggml.pre of gpt2.
std::vector<std::string> gguf_pre_tokenizers();

/// Immutable; copies share one vocabulary. Const use from several threads is safe.
class Tokenizer {
 public:
  /// Throws UserError naming the file and the place in it (`tokenizer.json: model.merges[3]: ...`): unreadable file,
  /// malformed JSON, a part that is not supported. `truncation` and `padding` of the file are not applied: they belong
  /// to one use of a tokenizer, and whoever makes batches decides them.
  static Tokenizer from_json_file(const std::filesystem::path& tokenizer_json);
  static Tokenizer from_json(std::string_view json, std::string_view name_for_errors);

  /// Control tokens become special added tokens (of llama the unknown token too), user-defined ones added tokens. Throws UserError like
  /// from_json.
  static Tokenizer from_gguf(const GgufVocabulary& vocabulary, std::string_view name_for_errors);

  /// A tokenizer.json by which the `tokenizers` library and from_json give the same tokens and texts as this one does.
  std::string to_json() const;

  /// Token ids of a text. Bytes that are not valid UTF-8 become U+FFFD first. The texts of added tokens are recognised.
  /// add_special_tokens puts the file's beginning- and end-of-text tokens around it. Throws UserError when a regular
  /// expression of the file gives up on the text. About linear in the text.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens = false) const;

  /// Like encode, but special tokens in the text are plain characters: for text from users, which must not be able to
  /// write <|im_end|> and be believed. Added tokens that are not special, such as <tool_call> or words that somebody added, are
  /// recognised. The result never holds the id of a special token (but for the unknown token of models that have one, where a
  /// character has no token). at_text_start: false for a stretch behind an added token, before which some tokenizers put no mark of
  /// a beginning.
  std::vector<int32_t> encode_plain(std::string_view text, bool at_text_start = true) const;

  /// Whether spaces are characters of the tokens' own (▁), one of which may stand before a text that begins with none: tokenizers
  /// made after SentencePiece (Llama 2, TinyLlama, Mistral).
  bool marks_spaces() const;

  /// The bytes that a token stands for: over the tokens of a text they join to the normalised text, with the space before it. Of an
  /// added token its text.
  std::string token_bytes(int32_t id) const;

  /// The text of token ids, valid UTF-8. Ids without a token are passed over. skip_special leaves special tokens out.
  std::string decode(std::span<const int32_t> ids, bool skip_special = false) const;

  /// Decodes while ids arrive; the pieces, joined, equal decode() of all of them. Holds a share of the tokenizer.
  class Stream {
   public:
    /// The text that is certain now; never a part of a character.
    std::string add(int32_t id);
    /// The rest.
    std::string finish() { return decoder_.finish(); }

   private:
    friend class Tokenizer;
    Stream(std::shared_ptr<const TokenizerParts> parts, bool skip_special);

    std::shared_ptr<const TokenizerParts> parts_;
    StreamingDecoder decoder_;
    bool skip_special_;
  };
  Stream stream(bool skip_special = false) const { return Stream(parts_, skip_special); }

  /// One more than the largest id.
  int32_t vocabulary_size() const;

  /// The id of a token's own text (byte-level characters for ordinary tokens, plain text for added ones).
  std::optional<int32_t> token_id(std::string_view token) const;

  /// The text of a token; "" for an id without one. Throws InternalError when 0 <= id < vocabulary_size() is false.
  const std::string& token(int32_t id) const;

  /// Whether skip_special leaves this id out; false for ids without a token.
  bool is_special(int32_t id) const;

  /// Whether this id is an added token, special or not.
  bool is_added(int32_t id) const;
  /// As the file has them, in its order.
  const std::vector<AddedToken>& added_tokens() const;

  /// What encode(..., true) puts before and behind the text.
  const std::vector<int32_t>& prefix_ids() const;
  const std::vector<int32_t>& suffix_ids() const;

  /// Checksum of what it was made from: tokenizers with an equal one give equal tokens.
  const std::string& hash() const { return hash_; }

 private:
  Tokenizer(std::shared_ptr<const TokenizerParts> parts, std::string hash) : parts_(std::move(parts)), hash_(std::move(hash)) {}

  std::shared_ptr<const TokenizerParts> parts_;
  std::string hash_;
};

}  // namespace cotune
