#include <algorithm>
#include <cmath>
#include <cstdint>
#include <tuple>

#include "base/error.h"
#include "base/utf8.h"
#include "data/tokenizer/tokenizer_parts.h"
#include "data/tokenizer/unicode.h"

namespace cotune {
namespace {

constexpr std::string_view llama3_split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2_split =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// What tokenizer.json of the same models says.
struct Family {
  std::string_view pre;
  std::string_view split;  ///< "" where ByteLevel's own expression splits
  bool individual_digits;
  bool normalize_nfc;
  bool ignore_merges;
  bool add_bos;
};

constexpr Family split_families[] = {
    {"gpt-2", "", false, false, false, false},
    {"llama-bpe", llama3_split, false, false, true, true},
    {"llama3", llama3_split, false, false, true, true},
    {"llama-v3", llama3_split, false, false, true, true},
    {"smaug-bpe", llama3_split, false, false, true, true},
    {"qwen2", qwen2_split, false, true, false, false},
    {"deepseek-r1-qwen", qwen2_split, false, true, false, false},
    {"smollm", "", true, false, false, false},
};

constexpr int32_t normal_token = 1, unknown_token = 2, control_token = 3, user_defined_token = 4;
constexpr size_t longest_cut_token = 512;  ///< the work grows by the square of it
constexpr std::string_view marked_space = "\u2581";

const Family& family_of(const GgufVocabulary& in, std::string_view name) {
  const auto family = std::find_if(std::begin(split_families), std::end(split_families), [&](const Family& f) { return f.pre == in.pre; });
  if (family == std::end(split_families)) {
    throw_user_error("{}: tokenizer.ggml.pre: '{}' is not supported; supported are {}", name, in.pre,
                     fmt::join(gguf_pre_tokenizers(), ", "));
  }
  return *family;
}

void split_bytes(const GgufVocabulary& in, const Family& family, TokenizerParts& parts) {
  if (family.normalize_nfc) parts.normalizer.add(NormalizeNfc{});
  if (!family.split.empty()) {
    parts.pre_tokenizer.add(SplitByRegex{TokenizerRegex(family.split), SplitBehavior::isolated, false});
  }
  if (family.individual_digits) parts.pre_tokenizer.add(SplitDigits{true});
  parts.pre_tokenizer.add(ByteLevelWords{in.add_space_prefix.value_or(false), family.split.empty()});
  parts.decoder.byte_level = true;
}

/// As SentencePiece does, and tokenizer.json of the same models.
void mark_spaces(const GgufVocabulary& in, TokenizerParts& parts) {
  const bool adds_space = in.add_space_prefix.value_or(true);
  if (adds_space) parts.normalizer.add(NormalizePrepend{std::string(marked_space)});
  parts.normalizer.add(NormalizeReplaceString{" ", std::string(marked_space)});
  parts.decoder.replaces.emplace_back(marked_space, " ");
  parts.decoder.byte_fallback = true;
  parts.decoder.strip_character = ' ';
  parts.decoder.strip_count = adds_space ? 1 : 0;
}

std::vector<BpeModel::Merge> listed_merges(const GgufVocabulary& in, std::string_view name) {
  std::vector<BpeModel::Merge> merges;
  merges.reserve(in.merges.size());
  for (size_t i = 0; i < in.merges.size(); ++i) {
    const std::string& text = in.merges[i];
    const size_t space = text.find(' ', 1);
    if (space == text.npos || space + 1 == text.size()) {
      throw_user_error("{}: tokenizer.ggml.merges[{}]: expected two tokens with a space between them, got '{}'", name, i, text);
    }
    merges.push_back({text.substr(0, space), text.substr(space + 1)});
  }
  return merges;
}

/// The merges that SentencePiece's scores imply, in the order of transformers' `generate_merges`: every pair of tokens that joins to a
/// token, by the score of that one, then by the characters of the left and of the right part, all descending; what is equal in these as the
/// joined token stands in the vocabulary, then by the parts' ids.
std::vector<BpeModel::Merge> merges_by_score(const GgufVocabulary& in, const TokenIds& vocabulary, std::string_view name) {
  if (in.scores.size() != in.tokens.size()) {
    throw_user_error("{}: tokenizer.ggml.scores: {} scores for {} tokens", name, in.scores.size(), in.tokens.size());
  }
  struct Scored {
    float score;
    size_t left_characters, right_characters, joined;
    int32_t left, right;
    auto order() const {
      return std::tuple(-score, -static_cast<int64_t>(left_characters), -static_cast<int64_t>(right_characters), joined, left, right);
    }
  };
  std::vector<Scored> scored;
  for (size_t i = 0; i < in.tokens.size(); ++i) {
    const std::string_view text = in.tokens[i];
    if (text.size() > longest_cut_token) {
      throw_user_error("{}: tokenizer.ggml.tokens[{}]: has {} bytes; without merges at most {} are accepted", name, i, text.size(),
                       longest_cut_token);
    }
    if (!std::isfinite(in.scores[i])) throw_user_error("{}: tokenizer.ggml.scores[{}]: must be a finite number", name, i);
    std::vector<size_t> cuts;  // behind every character but the last
    for (size_t at = 0; at < text.size();) {
      next_code_point(text, at);
      cuts.push_back(at);
    }
    for (size_t cut = 0; cut + 1 < cuts.size(); ++cut) {
      const auto left = vocabulary.find(text.substr(0, cuts[cut])), right = vocabulary.find(text.substr(cuts[cut]));
      if (left == vocabulary.end() || right == vocabulary.end()) continue;
      scored.push_back({in.scores[i], cut + 1, cuts.size() - cut - 1, i, left->second, right->second});
    }
  }
  std::ranges::sort(scored, {}, &Scored::order);
  std::vector<BpeModel::Merge> merges;
  for (const Scored& merge : scored) {
    merges.push_back({in.tokens[static_cast<size_t>(merge.left)], in.tokens[static_cast<size_t>(merge.right)]});
  }
  return merges;
}

}  // namespace

int32_t gguf_token_type(int64_t number, size_t place, std::string_view name) {
  if (number < 0 || number > 6) {
    throw_user_error("{}: tokenizer.ggml.token_type[{}]: found {}; accepted: 0 to 6", name, place, number);
  }
  return static_cast<int32_t>(number);
}

std::vector<std::string> gguf_pre_tokenizers() {
  std::vector<std::string> out;
  for (const Family& family : split_families) out.emplace_back(family.pre);
  return out;
}

std::shared_ptr<const TokenizerParts> tokenizer_parts_from_gguf(const GgufVocabulary& in, std::string_view name) {
  const bool marks_spaces = in.model == "llama";
  if (in.model != "gpt2" && !marks_spaces) {
    throw_user_error(
        "{}: tokenizer.ggml.model: must be gpt2 (byte-level BPE) or llama (SentencePiece's BPE), got '{}'; take the Hugging Face "
        "folder of this model, with its tokenizer.json, in place of the GGUF file",
        name, in.model);
  }
  const Family* family = marks_spaces ? nullptr : &family_of(in, name);
  if (in.tokens.empty()) throw_user_error("{}: tokenizer.ggml.tokens: must not be empty", name);
  if (in.tokens.size() > 16'777'216) throw_user_error("{}: tokenizer.ggml.tokens: more than 16777216", name);
  if (!in.token_types.empty() && in.token_types.size() != in.tokens.size()) {
    throw_user_error("{}: tokenizer.ggml.token_type: {} entries for {} tokens", name, in.token_types.size(),
                     in.tokens.size());
  }

  auto parts = std::make_shared<TokenizerParts>();
  if (marks_spaces) {
    mark_spaces(in, *parts);
  } else {
    split_bytes(in, *family, *parts);
  }

  TokenIds vocabulary;
  vocabulary.reserve(in.tokens.size());
  std::vector<int32_t> special_ids;
  for (size_t i = 0; i < in.tokens.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    const std::string& text = in.tokens[i];
    if (!is_valid_utf8(text)) throw_user_error("{}: tokenizer.ggml.tokens[{}]: is not valid UTF-8", name, i);
    const int32_t type = in.token_types.empty() ? normal_token : gguf_token_type(in.token_types[i], i, name);
    vocabulary.emplace(text, id);
    const bool is_unknown = marks_spaces && type == unknown_token;
    if ((type == control_token || type == user_defined_token || is_unknown) && !text.empty()) {
      AddedToken token;
      token.id = id;
      token.content = text;
      token.special = type != user_defined_token;
      if (token.special) special_ids.push_back(id);
      parts->added.push_back(std::move(token));
    }
  }
  parts->index_tokens(vocabulary);

  const auto special_id = [&](int32_t id, const char* key) {
    if (!parts->has_token(id)) {
      throw_user_error("{}: tokenizer.ggml.{}: must be between 0 and {}, got {}", name, key, in.tokens.size() - 1, id);
    }
    return id;
  };
  if (in.bos >= 0 && in.add_bos.value_or(marks_spaces || family->add_bos)) {
    parts->prefix_ids.push_back(special_id(in.bos, "bos_token_id"));
  }
  if (in.eos >= 0 && in.add_eos) parts->suffix_ids.push_back(special_id(in.eos, "eos_token_id"));

  BpeOptions options;
  options.ignore_merges = !marks_spaces && family->ignore_merges;
  options.byte_fallback = options.fuse_unknown = marks_spaces;
  const std::vector<BpeModel::Merge> merges =
      marks_spaces && in.merges.empty() ? merges_by_score(in, vocabulary, name) : listed_merges(in, name);
  try {
    parts->model = std::make_unique<BpeModel>(std::move(vocabulary), merges, options, std::move(special_ids));
  } catch (const UserError& error) {
    throw_user_error("{}: tokenizer.ggml.{}", name, error.what());
  }
  return parts;
}

}  // namespace cotune
