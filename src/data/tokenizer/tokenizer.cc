#include "data/tokenizer/tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "base/running_checksum.h"
#include "base/utf8.h"
#include "data/tokenizer/tokenizer_parts.h"

namespace cotune {
namespace {

/// What a text is taken for: any added token may be made of it, or those alone that are not special.
struct Reading {
  const TokenizerParts::Matchers& added;
  bool merges_make_added = true;  ///< also where merges of other tokens come to it
};

/// Encodes a stretch that holds no added tokens any more.
void encode_words(const TokenizerParts& parts, std::string text, bool at_text_start, bool allow_added,
                  std::vector<int32_t>& out) {
  const WordList list = parts.pre_tokenizer.apply(std::move(text), at_text_start);
  for (const WordList::Word& word : list.words) parts.model->encode(list.view(word), allow_added, out);
}

void encode_normalized(const TokenizerParts& parts, std::string_view raw, bool at_text_start, const Reading& reading,
                       std::vector<int32_t>& out) {
  std::string text = parts.normalizer.apply(raw);
  if (reading.added.normalized.empty()) {
    encode_words(parts, std::move(text), at_text_start, reading.merges_make_added, out);
    return;
  }
  for (const auto& stretch : reading.added.normalized.split(text)) {
    if (stretch.id >= 0) {
      out.push_back(stretch.id);
    } else {
      encode_words(parts, text.substr(stretch.begin, stretch.end - stretch.begin),
                   at_text_start && stretch.begin == 0, reading.merges_make_added, out);
    }
  }
}

/// Of a text that is valid UTF-8.
void encode_text(const TokenizerParts& parts, std::string_view text, bool at_text_start, const Reading& reading, std::vector<int32_t>& out) {
  if (reading.added.raw.empty()) {
    encode_normalized(parts, text, at_text_start, reading, out);
    return;
  }
  for (const auto& stretch : reading.added.raw.split(text)) {
    if (stretch.id >= 0) {
      out.push_back(stretch.id);
    } else {
      encode_normalized(parts, text.substr(stretch.begin, stretch.end - stretch.begin), at_text_start && stretch.begin == 0, reading, out);
    }
  }
}

std::string hash_of(const GgufVocabulary& vocabulary) {
  RunningChecksum sum;
  const auto add_text = [&](const std::string& text) {
    const uint64_t size = text.size();
    sum.add(std::as_bytes(std::span(&size, 1)));
    sum.add(std::as_bytes(std::span(text)));
  };
  add_text(fmt::format("{} {} {} {} {} {} {} {} {}", vocabulary.tokens.size(), vocabulary.token_types.size(), vocabulary.bos,
                       vocabulary.eos, vocabulary.pad, vocabulary.unk, vocabulary.add_bos ? static_cast<int>(*vocabulary.add_bos) : -1,
                       vocabulary.add_eos, vocabulary.add_space_prefix.value_or(vocabulary.model == "llama")));
  add_text(vocabulary.model);
  add_text(vocabulary.pre);
  for (const std::string& token : vocabulary.tokens) add_text(token);
  for (const std::string& merge : vocabulary.merges) add_text(merge);
  sum.add(std::as_bytes(std::span(vocabulary.token_types)));
  sum.add(std::as_bytes(std::span(vocabulary.scores)));
  return sum.text();
}

}  // namespace

void TokenizerParts::index_tokens(const TokenIds& model_vocabulary) {
  int32_t largest = -1;
  for (const auto& [text, id] : model_vocabulary) largest = std::max(largest, id);
  for (const AddedToken& token : added) largest = std::max(largest, token.id);
  const size_t size = static_cast<size_t>(largest) + 1;
  tokens.resize(size);
  decoded_texts.resize(size);
  kinds.resize(size, TokenKind::absent);
  for (const auto& [text, id] : model_vocabulary) {
    tokens[id] = text;
    kinds[id] = TokenKind::model;
  }
  for (const AddedToken& token : added) {
    tokens[token.id] = token.content;
    kinds[token.id] = token.special ? TokenKind::special : TokenKind::added;
    if (!token.normalized) {
      all.raw.add(token, token.content);
      if (!token.special) not_special.raw.add(token, token.content);
      continue;
    }
    const std::string normalized = normalizer.apply(token.content);
    if (!normalized.empty()) all.normalized.add(token, normalized);
    if (!normalized.empty() && !token.special) not_special.normalized.add(token, normalized);
    if (normalized != token.content) decoded_texts[token.id] = normalized;
  }
}

Tokenizer Tokenizer::from_json_file(const std::filesystem::path& tokenizer_json) {
  const MappedFile file(tokenizer_json);
  return from_json(file.text(), tokenizer_json.string());
}

Tokenizer Tokenizer::from_json(std::string_view json, std::string_view name_for_errors) {
  return {tokenizer_parts_from_json(json, name_for_errors), checksum(json)};
}

Tokenizer Tokenizer::from_gguf(const GgufVocabulary& vocabulary, std::string_view name_for_errors) {
  return {tokenizer_parts_from_gguf(vocabulary, name_for_errors), hash_of(vocabulary)};
}

std::string Tokenizer::to_json() const { return tokenizer_json_of(*parts_); }

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const TokenizerParts& parts = *parts_;
  std::vector<int32_t> out;
  if (add_special_tokens) out = parts.prefix_ids;
  std::string repaired;
  if (!is_valid_utf8(text)) {
    repaired = replace_invalid_utf8(text);
    text = repaired;
  }
  encode_text(parts, text, true, {.added = parts.all}, out);
  if (add_special_tokens) out.insert(out.end(), parts.suffix_ids.begin(), parts.suffix_ids.end());
  return out;
}

std::vector<int32_t> Tokenizer::encode_plain(std::string_view text, bool at_text_start) const {
  std::vector<int32_t> out;
  const std::string valid = is_valid_utf8(text) ? std::string(text) : replace_invalid_utf8(text);
  encode_text(*parts_, valid, at_text_start, {.added = parts_->not_special, .merges_make_added = false}, out);
  return out;
}

bool Tokenizer::marks_spaces() const {
  const DecoderRules& rules = parts_->decoder;
  return !rules.byte_level && (!rules.metaspace.empty() || std::ranges::any_of(rules.replaces, [](const auto& each) { return each.second == " "; }));
}

std::string Tokenizer::token_bytes(int32_t id) const {
  const std::string& text = token(id);
  return is_added(id) ? text : bytes_of_token(parts_->decoder, text);
}

Tokenizer::Stream::Stream(std::shared_ptr<const TokenizerParts> parts, bool skip_special)
    : parts_(std::move(parts)), decoder_(parts_->decoder), skip_special_(skip_special) {}

std::string Tokenizer::Stream::add(int32_t id) {
  if (!parts_->has_token(id)) return {};
  if (skip_special_ && parts_->kinds[id] == TokenizerParts::TokenKind::special) return {};
  return decoder_.add(parts_->text_to_decode(id));
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Stream decoding = stream(skip_special);
  std::string out;
  for (const int32_t id : ids) out += decoding.add(id);
  return out + decoding.finish();
}

const std::vector<AddedToken>& Tokenizer::added_tokens() const { return parts_->added; }

int32_t Tokenizer::vocabulary_size() const { return static_cast<int32_t>(parts_->tokens.size()); }

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  for (const AddedToken& added : parts_->added) {
    if (added.content == token) return added.id;
  }
  const TokenIds& ids = parts_->model->vocabulary();
  const auto it = ids.find(token);
  return it != ids.end() ? std::optional(it->second) : std::nullopt;
}

const std::string& Tokenizer::token(int32_t id) const {
  COTUNE_CHECK(id >= 0 && id < vocabulary_size(), "token id {} of {}", id, vocabulary_size());
  return parts_->tokens[id];
}

bool Tokenizer::is_special(int32_t id) const {
  return parts_->has_token(id) && parts_->kinds[id] == TokenizerParts::TokenKind::special;
}

bool Tokenizer::is_added(int32_t id) const {
  return parts_->has_token(id) && parts_->kinds[id] >= TokenizerParts::TokenKind::added;
}

const std::vector<int32_t>& Tokenizer::prefix_ids() const { return parts_->prefix_ids; }
const std::vector<int32_t>& Tokenizer::suffix_ids() const { return parts_->suffix_ids; }

}  // namespace cotune
