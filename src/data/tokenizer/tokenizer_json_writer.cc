#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "data/tokenizer/tokenizer_parts.h"

namespace cotune {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// Nothing, the one step, or a sequence of them under `name_of_list`.
OrderedJson in_sequence(OrderedJson steps, const char* name_of_list) {
  if (steps.empty()) return nullptr;
  if (steps.size() == 1) return std::move(steps[0]);
  return {{"type", "Sequence"}, {name_of_list, std::move(steps)}};
}

OrderedJson string_pattern(const std::string& text) { return {{"String", text}}; }
OrderedJson regex_pattern(const TokenizerRegex& regex) { return {{"Regex", regex.pattern()}}; }

OrderedJson replace(OrderedJson pattern, const std::string& content) {
  return {{"type", "Replace"}, {"pattern", std::move(pattern)}, {"content", content}};
}

OrderedJson json_of(const NormalizeNfc&) { return {{"type", "NFC"}}; }
OrderedJson json_of(const NormalizePrepend& step) { return {{"type", "Prepend"}, {"prepend", step.text}}; }
OrderedJson json_of(const NormalizeReplaceString& step) { return replace(string_pattern(step.pattern), step.content); }
OrderedJson json_of(const NormalizeReplaceRegex& step) { return replace(regex_pattern(step.pattern), step.content); }

const char* name_of(SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::isolated: return "Isolated";
    case SplitBehavior::removed: return "Removed";
    case SplitBehavior::merged_with_previous: return "MergedWithPrevious";
    case SplitBehavior::merged_with_next: return "MergedWithNext";
    case SplitBehavior::contiguous: return "Contiguous";
  }
  return "";
}

const char* name_of(MetaspaceWords::Prepend prepend) {
  switch (prepend) {
    case MetaspaceWords::Prepend::always: return "always";
    case MetaspaceWords::Prepend::first_only: return "first";
    case MetaspaceWords::Prepend::never: return "never";
  }
  return "";
}

OrderedJson split(OrderedJson pattern, SplitBehavior behavior, bool invert) {
  return {{"type", "Split"}, {"pattern", std::move(pattern)}, {"behavior", name_of(behavior)}, {"invert", invert}};
}

/// trim_offsets, which `tokenizers` wants to be told, moves no token.
OrderedJson byte_level(bool add_prefix_space, bool use_regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"trim_offsets", false}, {"use_regex", use_regex}};
}

OrderedJson metaspace(const std::string& replacement, MetaspaceWords::Prepend prepend, bool split) {
  return {{"type", "Metaspace"}, {"replacement", replacement}, {"prepend_scheme", name_of(prepend)}, {"split", split}};
}

OrderedJson json_of(const SplitByRegex& step) { return split(regex_pattern(step.pattern), step.behavior, step.invert); }
OrderedJson json_of(const SplitByString& step) { return split(string_pattern(step.pattern), step.behavior, step.invert); }
OrderedJson json_of(const SplitDigits& step) { return {{"type", "Digits"}, {"individual_digits", step.individual}}; }
OrderedJson json_of(const ByteLevelWords& step) { return byte_level(step.add_prefix_space, step.use_regex); }
OrderedJson json_of(const MetaspaceWords& step) { return metaspace(step.replacement, step.prepend, step.split); }

template <typename Step>
OrderedJson steps_of(const std::vector<Step>& steps, const char* name_of_list) {
  OrderedJson list = OrderedJson::array();
  for (const Step& step : steps) list.push_back(std::visit([](const auto& each) { return json_of(each); }, step));
  return in_sequence(std::move(list), name_of_list);
}

/// In the order in which StreamingDecoder applies them.
OrderedJson decoder_of(const DecoderRules& rules) {
  if (rules.join_with_spaces) return nullptr;
  if (rules.byte_level) return byte_level(true, true);
  OrderedJson list = OrderedJson::array();
  for (const auto& [pattern, content] : rules.replaces) list.push_back(replace(string_pattern(pattern), content));
  if (!rules.metaspace.empty()) {
    using Prepend = MetaspaceWords::Prepend;
    list.push_back(metaspace(rules.metaspace, rules.drop_metaspace_of_first ? Prepend::always : Prepend::never, true));
  }
  if (rules.byte_fallback) list.push_back({{"type", "ByteFallback"}});
  list.push_back({{"type", "Fuse"}});
  if (rules.strip_count != 0) {
    std::string character;
    append_utf8(character, rules.strip_character);
    list.push_back({{"type", "Strip"}, {"content", character}, {"start", rules.strip_count}, {"stop", 0}});
  }
  return in_sequence(std::move(list), "decoders");
}

OrderedJson added_tokens_of(const TokenizerParts& parts) {
  std::vector<AddedToken> sorted = parts.added;
  std::ranges::sort(sorted, {}, &AddedToken::id);
  OrderedJson list = OrderedJson::array();
  for (const AddedToken& token : sorted) {
    list.push_back({{"id", token.id}, {"content", token.content}, {"single_word", token.single_word}, {"lstrip", token.lstrip},
                    {"rstrip", token.rstrip}, {"normalized", token.normalized}, {"special", token.special}});
  }
  return list;
}

/// The prefix and the suffix around each text of a pair too, as Llama's and Qwen's files have it.
OrderedJson post_processor_of(const TokenizerParts& parts) {
  if (parts.prefix_ids.empty() && parts.suffix_ids.empty()) return nullptr;
  OrderedJson special = OrderedJson::object();
  const auto template_of = [&](const char* sequence, int type_id, OrderedJson& to) {
    const auto add = [&](const std::vector<int32_t>& ids) {
      for (const int32_t id : ids) {
        const std::string& token = parts.tokens[static_cast<size_t>(id)];
        special[token] = {{"id", token}, {"ids", OrderedJson::array({id})}, {"tokens", OrderedJson::array({token})}};
        to.push_back({{"SpecialToken", {{"id", token}, {"type_id", type_id}}}});
      }
    };
    add(parts.prefix_ids);
    to.push_back({{"Sequence", {{"id", sequence}, {"type_id", type_id}}}});
    add(parts.suffix_ids);
  };
  OrderedJson single = OrderedJson::array(), pair = OrderedJson::array();
  template_of("A", 0, single);
  template_of("A", 0, pair);
  template_of("B", 1, pair);
  return {{"type", "TemplateProcessing"}, {"single", std::move(single)}, {"pair", std::move(pair)}, {"special_tokens", std::move(special)}};
}

OrderedJson model_of(const BpeModel& model) {
  std::vector<std::pair<std::string, int32_t>> tokens(model.vocabulary().begin(), model.vocabulary().end());
  std::ranges::sort(tokens, {}, &std::pair<std::string, int32_t>::second);
  std::vector<const std::string*> text_of(tokens.empty() ? 0 : static_cast<size_t>(tokens.back().second) + 1);
  for (const auto& [text, id] : tokens) text_of[static_cast<size_t>(id)] = &text;
  const BpeOptions& options = model.options();
  OrderedJson merges = OrderedJson::array();
  for (const auto& [left, right] : model.merges()) {
    merges.push_back(OrderedJson::array({*text_of[static_cast<size_t>(left)], *text_of[static_cast<size_t>(right)]}));
  }
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", options.unknown_id ? OrderedJson(*text_of[static_cast<size_t>(*options.unknown_id)]) : OrderedJson()},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", options.fuse_unknown},
          {"byte_fallback", options.byte_fallback},
          {"ignore_merges", options.ignore_merges},
          {"vocab", OrderedJson::object_t(tokens.begin(), tokens.end())},  // at once: adding one by one takes the square of the time
          {"merges", std::move(merges)}};
}

}  // namespace

std::string tokenizer_json_of(const TokenizerParts& parts) {
  const OrderedJson document = {{"version", "1.0"},
                                {"truncation", nullptr},
                                {"padding", nullptr},
                                {"added_tokens", added_tokens_of(parts)},
                                {"normalizer", steps_of(parts.normalizer.steps(), "normalizers")},
                                {"pre_tokenizer", steps_of(parts.pre_tokenizer.steps(), "pretokenizers")},
                                {"post_processor", post_processor_of(parts)},
                                {"decoder", decoder_of(parts.decoder)},
                                {"model", model_of(*parts.model)}};
  return document.dump(2) + "\n";
}

}  // namespace cotune
