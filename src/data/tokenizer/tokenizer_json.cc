#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_mistake.h"
#include "base/lfs_pointer.h"
#include "base/utf8.h"
#include "data/tokenizer/tokenizer_json_place.h"
#include "data/tokenizer/tokenizer_parts.h"

namespace cotune {
namespace {

constexpr int deepest_sequence = 16;

/// Runs `build`, whose UserErrors do not know where they are, and names the place.
template <typename Build>
auto at_place(const JsonPlace& place, const Build& build) {
  try {
    return build();
  } catch (const UserError& error) {
    place.fail("{}", error.what());
  }
}

/// {"String": "..."} or {"Regex": "..."}.
struct Pattern {
  bool is_regex;
  std::string text;
};

Pattern read_pattern(const JsonPlace& place) {
  if (const auto text = place.find("String")) return {false, text->string()};
  if (const auto text = place.find("Regex")) return {true, text->string()};
  place.fail(R"(expected {{"String": ...}} or {{"Regex": ...}})");
}

void require_text(const JsonPlace& place, const std::string& text) {
  if (text.empty()) place.fail("must not be empty");
}

void read_normalizer(const JsonPlace& place, TokenizerNormalizer& out, int depth) {
  const std::string type = place.at("type").string();
  if (type == "Sequence") {
    if (depth >= deepest_sequence) place.fail("sequences nested more than {} deep", deepest_sequence);
    place.at("normalizers").each([&](const JsonPlace& item) { read_normalizer(item, out, depth + 1); });
  } else if (type == "NFC") {
    out.add(NormalizeNfc{});
  } else if (type == "Prepend") {
    out.add(NormalizePrepend{place.at("prepend").string()});
  } else if (type == "Replace") {
    const Pattern pattern = read_pattern(place.at("pattern"));
    require_text(place.at("pattern"), pattern.text);
    const std::string content = place.at("content").string();
    if (pattern.is_regex) {
      out.add(at_place(place.at("pattern"), [&] {
        return NormalizeReplaceRegex{TokenizerRegex(pattern.text), content};
      }));
    } else {
      out.add(NormalizeReplaceString{pattern.text, content});
    }
  } else {
    place.at("type").fail("normalizer '{}' is not supported; supported are NFC, Prepend, Replace, Sequence", type);
  }
}

SplitBehavior read_behavior(const JsonPlace& place) {
  const std::string name = place.string();
  if (name == "Isolated") return SplitBehavior::isolated;
  if (name == "Removed") return SplitBehavior::removed;
  if (name == "MergedWithPrevious") return SplitBehavior::merged_with_previous;
  if (name == "MergedWithNext") return SplitBehavior::merged_with_next;
  if (name == "Contiguous") return SplitBehavior::contiguous;
  place.fail("behavior '{}' is unknown; known are Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous",
             name);
}

/// prepend_scheme, or add_prefix_space in older files.
MetaspaceWords::Prepend read_prepend_scheme(const JsonPlace& place) {
  using Prepend = MetaspaceWords::Prepend;
  const auto scheme = place.find("prepend_scheme");
  const auto add = place.find("add_prefix_space");
  if (add && !add->boolean()) return Prepend::never;
  if (!scheme) return Prepend::always;
  const std::string name = scheme->string();
  if (name == "always") return Prepend::always;
  if (name == "first") return Prepend::first_only;
  if (name == "never") return Prepend::never;
  scheme->fail("prepend_scheme '{}' is unknown; known are always, first, never", name);
}

void read_pre_tokenizer(const JsonPlace& place, PreTokenizer& out, int depth) {
  const std::string type = place.at("type").string();
  if (type == "Sequence") {
    if (depth >= deepest_sequence) place.fail("sequences nested more than {} deep", deepest_sequence);
    place.at("pretokenizers").each([&](const JsonPlace& item) { read_pre_tokenizer(item, out, depth + 1); });
  } else if (type == "ByteLevel") {
    out.add(ByteLevelWords{place.boolean_or("add_prefix_space", true), place.boolean_or("use_regex", true)});
  } else if (type == "Digits") {
    out.add(SplitDigits{place.boolean_or("individual_digits", false)});
  } else if (type == "Metaspace") {
    const std::string replacement = place.at("replacement").string();
    require_text(place.at("replacement"), replacement);
    out.add(MetaspaceWords{replacement, read_prepend_scheme(place), place.boolean_or("split", true)});
  } else if (type == "Split") {
    const Pattern pattern = read_pattern(place.at("pattern"));
    require_text(place.at("pattern"), pattern.text);
    const SplitBehavior behavior = read_behavior(place.at("behavior"));
    const bool invert = place.boolean_or("invert", false);
    if (pattern.is_regex) {
      out.add(at_place(place.at("pattern"), [&] {
        return SplitByRegex{TokenizerRegex(pattern.text), behavior, invert};
      }));
    } else {
      out.add(SplitByString{pattern.text, behavior, invert});
    }
  } else {
    place.at("type").fail(
        "pre_tokenizer '{}' is not supported; supported are ByteLevel, Digits, Metaspace, Sequence, Split", type);
  }
}

/// Decoders that work on each token come before Fuse, Strip comes after it.
void read_decoder(const JsonPlace& place, DecoderRules& out, bool& fused, int depth) {
  const std::string type = place.at("type").string();
  if (type == "Sequence") {
    if (depth >= deepest_sequence) place.fail("sequences nested more than {} deep", deepest_sequence);
    place.at("decoders").each([&](const JsonPlace& item) { read_decoder(item, out, fused, depth + 1); });
    return;
  }
  if (type == "Fuse") {
    fused = true;
    return;
  }
  if (out.byte_level) place.fail("a decoder behind ByteLevel is not supported");
  if (type == "Strip") {
    if (!fused) place.fail("Strip is supported behind Fuse only");
    if (out.strip_count != 0) place.fail("a second Strip is not supported");
    if (place.at("stop").integer() != 0) place.at("stop").fail("only 0 is supported");
    const int64_t start = place.at("start").integer();
    if (start < 0) place.at("start").fail("must not be negative, got {}", start);
    const std::string content = place.at("content").string();
    size_t position = 0;
    if (content.empty() || (out.strip_character = next_code_point(content, position), position != content.size())) {
      place.at("content").fail("must be one character");
    }
    out.strip_count = static_cast<size_t>(start);
    return;
  }
  if (fused) place.fail("decoder '{}' behind Fuse is not supported", type);
  if (type == "ByteLevel") {
    if (!out.replaces.empty() || out.byte_fallback || !out.metaspace.empty()) {
      place.fail("a decoder before ByteLevel is not supported");
    }
    out.byte_level = true;
  } else if (type == "ByteFallback") {
    out.byte_fallback = true;
  } else if (type == "Metaspace") {
    if (!out.metaspace.empty() || out.byte_fallback) place.fail("only as the first decoder, once");
    out.metaspace = place.at("replacement").string();
    require_text(place.at("replacement"), out.metaspace);
    out.drop_metaspace_of_first = read_prepend_scheme(place) != MetaspaceWords::Prepend::never;
  } else if (type == "Replace") {
    if (!out.metaspace.empty() || out.byte_fallback) place.fail("Replace behind {} is not supported",
                                                                out.byte_fallback ? "ByteFallback" : "Metaspace");
    const Pattern pattern = read_pattern(place.at("pattern"));
    if (pattern.is_regex) place.at("pattern").fail("a regular expression is not supported in a decoder");
    require_text(place.at("pattern"), pattern.text);
    out.replaces.emplace_back(pattern.text, place.at("content").string());
  } else {
    place.at("type").fail(
        "decoder '{}' is not supported; supported are ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, "
        "Strip",
        type);
  }
}

void read_template(const JsonPlace& place, TokenizerParts& parts) {
  std::vector<int32_t> before, behind;
  bool seen_text = false;
  place.at("single").each([&](const JsonPlace& item) {
    if (const auto sequence = item.find("Sequence")) {
      const std::string id = sequence->at("id").string();
      if (id != "A" || seen_text) item.fail("expected the sequence A exactly once");
      seen_text = true;
      return;
    }
    const std::string id = item.at("SpecialToken").at("id").string();
    place.at("special_tokens").at(id).at("ids").each([&](const JsonPlace& number) {
      const int64_t value = number.integer();
      if (value < 0 || !parts.has_token(static_cast<int32_t>(std::min<int64_t>(value, INT32_MAX)))) {
        number.fail("no token has the id {}", value);
      }
      (seen_text ? behind : before).push_back(static_cast<int32_t>(value));
    });
  });
  if (!seen_text) place.at("single").fail("expected the sequence A exactly once");
  before.insert(before.end(), parts.prefix_ids.begin(), parts.prefix_ids.end());
  parts.prefix_ids = std::move(before);
  parts.suffix_ids.insert(parts.suffix_ids.end(), behind.begin(), behind.end());
}

void read_post_processor(const JsonPlace& place, TokenizerParts& parts, int depth) {
  const std::string type = place.at("type").string();
  if (type == "Sequence") {
    if (depth >= deepest_sequence) place.fail("sequences nested more than {} deep", deepest_sequence);
    place.at("processors").each([&](const JsonPlace& item) { read_post_processor(item, parts, depth + 1); });
  } else if (type == "TemplateProcessing") {
    read_template(place, parts);
    if (parts.prefix_ids.size() + parts.suffix_ids.size() > 10'000) place.fail("more than 10000 special tokens");
  } else if (type != "ByteLevel") {  // ByteLevel only moves offsets
    place.at("type").fail(
        "post_processor '{}' is not supported; supported are ByteLevel, Sequence, TemplateProcessing", type);
  }
}

TokenIds read_vocabulary(const JsonPlace& place) {
  TokenIds out;
  const auto& object = place.object();
  const int64_t largest = largest_token_id(object.size());
  out.reserve(object.size());
  std::vector<uint8_t> taken;
  for (const auto& [token, value] : object.items()) {
    if (!value.is_number_integer()) place.fail("the id of '{}' must be an integer, got {}", token, value.type_name());
    const int64_t id = value.is_number_unsigned() && value.get<uint64_t>() > INT64_MAX ? INT64_MAX
                                                                                       : value.get<int64_t>();
    if (id < 0 || id > largest) place.fail("the id of '{}' must be between 0 and {}, got {}", token, largest, id);
    if (taken.size() <= static_cast<size_t>(id)) taken.resize(id + 1);
    if (taken[id]++ != 0) place.fail("two tokens have the id {}; one is '{}'", id, token);
    out.emplace(token, static_cast<int32_t>(id));
  }
  return out;
}

std::vector<BpeModel::Merge> read_merges(const JsonPlace& place) {
  std::vector<BpeModel::Merge> out;
  const size_t count = place.size();
  out.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    const nlohmann::json& value = place.array()[i];
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;
      const size_t space = text.find(' ');
      if (space == text.npos || text.find(' ', space + 1) != text.npos) {
        place.element(i).fail("expected two tokens with one space between them, got '{}'", text);
      }
      out.push_back({text.substr(0, space), text.substr(space + 1)});
    } else {
      const JsonPlace pair = place.element(i);
      if (pair.size() != 2) pair.fail("expected two tokens, got {}", pair.size());
      out.push_back({pair.element(0).string(), pair.element(1).string()});
    }
  }
  return out;
}

/// Added tokens that the model does not know get the ids behind it, in order, as in `tokenizers`; the id in the file is
/// then what it should be, unless the file is damaged.
std::vector<AddedToken> read_added_tokens(const JsonPlace& place, const TokenIds& vocabulary) {
  std::vector<AddedToken> out;
  std::unordered_map<std::string, size_t> index_of;
  auto next_id = static_cast<int64_t>(vocabulary.size());
  place.each([&](const JsonPlace& item) {
    AddedToken token;
    token.content = item.at("content").string();
    if (token.content.empty()) return;
    token.special = item.boolean_or("special", false);
    token.normalized = item.boolean_or("normalized", !token.special);
    token.single_word = item.boolean_or("single_word", false);
    token.lstrip = item.boolean_or("lstrip", false);
    token.rstrip = item.boolean_or("rstrip", false);
    item.at("id").integer();
    if (const auto again = index_of.find(token.content); again != index_of.end()) {
      token.id = out[again->second].id;
      token.special = token.special || out[again->second].special;
      out[again->second] = token;
      return;
    }
    if (const auto it = vocabulary.find(token.content); it != vocabulary.end()) {
      token.id = it->second;
    } else {
      token.id = static_cast<int32_t>(next_id++);
    }
    index_of.emplace(token.content, out.size());
    out.push_back(token);
  });
  return out;
}

void read_model(const JsonPlace& place, const std::optional<JsonPlace>& added_place, TokenizerParts& parts) {
  if (const auto type = place.find("type")) {
    if (type->string() != "BPE") type->fail("model '{}' is not supported; supported is BPE", type->string());
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (const auto affix = place.find(key); affix && !affix->string().empty()) {
      affix->fail("is not supported unless empty, got '{}'", affix->string());
    }
  }
  if (const auto dropout = place.find("dropout"); dropout && dropout->number() != 0) {
    dropout->fail("is not supported unless 0: it makes token ids random");
  }
  TokenIds vocabulary = read_vocabulary(place.at("vocab"));
  BpeOptions options;
  options.fuse_unknown = place.boolean_or("fuse_unk", false);
  options.byte_fallback = place.boolean_or("byte_fallback", false);
  options.ignore_merges = place.boolean_or("ignore_merges", false);
  if (const auto unknown = place.find("unk_token")) {
    const auto it = vocabulary.find(unknown->string());
    if (it == vocabulary.end()) unknown->fail("'{}' is not in the vocabulary", unknown->string());
    options.unknown_id = it->second;
  }
  if (added_place) parts.added = read_added_tokens(*added_place, vocabulary);
  parts.index_tokens(vocabulary);
  if (parts.tokens.empty()) place.at("vocab").fail("must not be empty");
  std::vector<int32_t> special_ids;
  for (const AddedToken& token : parts.added) {
    if (token.special) special_ids.push_back(token.id);
  }
  const std::vector<BpeModel::Merge> merges = read_merges(place.at("merges"));
  parts.model = at_place(place, [&] {
    return std::make_unique<BpeModel>(std::move(vocabulary), merges, options, std::move(special_ids));
  });
}

}  // namespace

std::shared_ptr<const TokenizerParts> tokenizer_parts_from_json(std::string_view json, std::string_view name) {
  refuse_lfs_pointer(json, name);
  const nlohmann::json document = json_of_file(json, name);
  const JsonPlace root(document, name);
  auto parts = std::make_shared<TokenizerParts>();
  if (const auto version = root.find("version"); version && version->string() != "1.0") {
    version->fail("must be \"1.0\", got \"{}\"", version->string());
  }
  if (const auto place = root.find("normalizer")) read_normalizer(*place, parts->normalizer, 0);
  if (const auto place = root.find("pre_tokenizer")) read_pre_tokenizer(*place, parts->pre_tokenizer, 0);
  if (const auto place = root.find("decoder")) {
    bool fused = false;
    read_decoder(*place, parts->decoder, fused, 0);
  } else {
    parts->decoder.join_with_spaces = true;
  }
  read_model(root.at("model"), root.find("added_tokens"), *parts);
  if (const auto place = root.find("post_processor")) read_post_processor(*place, *parts, 0);
  return parts;
}

}  // namespace cotune
