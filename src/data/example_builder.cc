#include "data/example_builder.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "base/error.h"
#include "base/random.h"
#include "base/utf8.h"
#include "data/records/alpaca.h"
#include "data/records/chat_record.h"
#include "data/records/token_padding.h"
#include "data/tokenizer/unicode.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

bool overlaps(std::span<const ByteRange> ranges, size_t begin, size_t end) {
  const auto next = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                     [](size_t position, const ByteRange& range) { return position < range.end; });
  return next != ranges.end() && next->begin < end;
}

/// The fields of a format that are texts of their own.
std::span<const std::string_view> text_fields(DataFormat format) {
  static constexpr std::array<std::string_view, 3> alpaca = {"instruction", "input", "output"};
  if (format == DataFormat::completion || format == DataFormat::text) return required_fields(format);
  return format == DataFormat::alpaca ? std::span<const std::string_view>(alpaca) : std::span<const std::string_view>();
}

void append(Example& example, std::span<const int32_t> tokens, bool learned) {
  example.tokens.insert(example.tokens.end(), tokens.begin(), tokens.end());
  example.learned.resize(example.tokens.size(), learned);
}

/// Special tokens that stand entirely within template text, over the whole text.
std::vector<SpecialMatch> trusted_special_tokens(const jinja::Text& text, const TextEncoder& encoder) {
  std::vector<SpecialMatch> matches;
  size_t begin = 0;
  for (const jinja::Run& run : text.runs()) {
    if (run.origin == jinja::template_origin) {
      for (SpecialMatch match : encoder.find_special(std::string_view(text.bytes()).substr(begin, run.end - begin))) {
        match.begin += begin;
        match.end += begin;
        matches.push_back(match);
      }
    }
    begin = run.end;
  }
  return matches;
}

/// Where the white space begins that ends at `end`, not before `least`.
size_t without_space_before(std::string_view text, size_t least, size_t end) {
  for (size_t before = end; before > least; end = before) {
    if (!is_whitespace(previous_code_point(text, before)) || before < least) break;
  }
  return end;
}

/// Where the white space ends that begins there.
size_t without_space_behind(std::string_view text, size_t begin) {
  for (size_t behind = begin; behind < text.size(); begin = behind) {
    if (!is_whitespace(next_code_point(text, behind))) break;
  }
  return begin;
}

/// A text and what of it is learned.
struct LearnedText {
  std::string_view bytes;
  std::span<const ByteRange> learned;
};

/// Which of the tokens are learned; nothing where their bytes are not those of the stretch [begin, end), with or without a space before it.
std::optional<std::vector<uint8_t>> learned_tokens(const LearnedText& text, size_t begin, size_t end, std::span<const int32_t> tokens,
                                                   const TextEncoder& encoder) {
  const std::string_view stretch = text.bytes.substr(begin, end - begin);
  std::vector<std::string> of_token;
  std::string joined;
  for (const int32_t token : tokens) joined += of_token.emplace_back(encoder.token_bytes(token));
  const bool has_space = encoder.marks_spaces() && joined != stretch && joined.starts_with(' ');
  if (std::string_view(joined).substr(has_space ? 1 : 0) != stretch) return std::nullopt;
  std::vector<uint8_t> learned;
  size_t at = 0;  // in `joined`
  for (const std::string& bytes : of_token) {
    const size_t from = at < 1 || !has_space ? at : at - 1;
    at += bytes.size();
    const size_t to = has_space ? at - std::min<size_t>(at, 1) : at;
    learned.push_back(overlaps(text.learned, begin + from, begin + std::max(to, from + 1)));  // a space before the text goes with what follows
  }
  return learned;
}

/// Tokens of the plain stretch [begin, end) of the text, as one where the tokenizer leaves the text as it is.
void append_whole_stretch(const LearnedText& text, size_t begin, size_t end, const TextEncoder& encoder, Example& example) {
  if (begin >= end) return;
  const std::vector<int32_t> tokens = encoder.encode_plain(text.bytes.substr(begin, end - begin), begin == 0);
  if (const auto learned = learned_tokens(text, begin, end, tokens, encoder)) {
    example.tokens.insert(example.tokens.end(), tokens.begin(), tokens.end());
    example.learned.insert(example.learned.end(), learned->begin(), learned->end());
    return;
  }
  std::vector<size_t> cuts = {begin, end};
  for (const ByteRange& range : text.learned) {
    if (range.begin > begin && range.begin < end) cuts.push_back(range.begin);
    if (range.end > begin && range.end < end) cuts.push_back(range.end);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const std::vector<int32_t> part_tokens = encoder.encode_plain(text.bytes.substr(cuts[i], cuts[i + 1] - cuts[i]), cuts[i] == 0);
    example.tokens.insert(example.tokens.end(), part_tokens.begin(), part_tokens.end());
    example.learned.resize(example.tokens.size(), overlaps(text.learned, cuts[i], cuts[i + 1]));
  }
}

/// The same, but where something learned begins, what stands before it is tokenized as it is in use, where nothing follows it. Not so where
/// tokenizers mark spaces: those may put one before the rest.
void append_stretch(const LearnedText& text, size_t begin, size_t end, const TextEncoder& encoder, Example& example) {
  for (const ByteRange& range : text.learned) {
    if (encoder.marks_spaces() || range.begin <= begin || range.begin >= end) continue;
    append_whole_stretch(text, begin, range.begin, encoder, example);
    begin = range.begin;
  }
  append_whole_stretch(text, begin, end, encoder, example);
}

}  // namespace

void encode_training_text(const TrainingText& text, const TextEncoder& encoder, Example& example) {
  const LearnedText whole{text.text.bytes(), text.learned};
  size_t at = 0;
  for (const SpecialMatch& special : trusted_special_tokens(text.text, encoder)) {
    append_stretch(whole, at, special.lstrip ? without_space_before(whole.bytes, at, special.begin) : special.begin, encoder, example);
    example.tokens.push_back(special.id);
    example.learned.push_back(overlaps(text.learned, special.begin, special.end));
    at = special.rstrip ? without_space_behind(whole.bytes, special.end) : special.end;
  }
  append_stretch(whole, at, text.text.size(), encoder, example);
}

DataFormat format_of(const ordered_json& record) {
  if (!record.is_object()) return DataFormat::automatic;
  if (record.contains("messages")) return DataFormat::messages;
  if (record.contains("conversations")) return DataFormat::sharegpt;
  if (record.contains("prompt") && record.contains("completion")) return DataFormat::completion;
  if (record.contains("instruction") && record.contains("output")) return DataFormat::alpaca;
  if (record.contains("text")) return DataFormat::text;
  if (record.contains("input_ids")) return DataFormat::tokens;
  return DataFormat::automatic;
}

std::string_view format_fields(DataFormat format) {
  switch (format) {
    case DataFormat::messages: return "messages";
    case DataFormat::sharegpt: return "conversations";
    case DataFormat::completion: return "prompt and completion";
    case DataFormat::alpaca: return "instruction, input (optional) and output";
    case DataFormat::text: return "text";
    case DataFormat::tokens: return "input_ids and labels";
    case DataFormat::automatic: break;
  }
  return "messages; or conversations; or prompt and completion; or instruction, input (optional) and output; or text; or input_ids and labels";
}

std::span<const std::string_view> required_fields(DataFormat format) {
  static constexpr std::array<std::string_view, 2> completion = {"prompt", "completion"}, alpaca = {"instruction", "output"},
                                                   tokens = {"input_ids", "labels"};
  static constexpr std::array<std::string_view, 1> messages = {"messages"}, sharegpt = {"conversations"}, text = {"text"};
  switch (format) {
    case DataFormat::messages: return messages;
    case DataFormat::sharegpt: return sharegpt;
    case DataFormat::completion: return completion;
    case DataFormat::alpaca: return alpaca;
    case DataFormat::text: return text;
    case DataFormat::tokens: return tokens;
    case DataFormat::automatic: break;
  }
  return {};
}

const std::vector<std::string>& record_fields() {
  static const std::vector<std::string> fields = {"messages", "conversations", "system", "tools", "functions", "prompt", "completion",
                                                  "instruction", "input", "output", "context", "history", "text", "input_ids", "labels",
                                                  "attention_mask"};
  return fields;
}

ExampleBuilder::ExampleBuilder(const TextEncoder& encoder, const ChatTemplate* chat_template, bool train_on_prompt,
                               SpecialTokens special_tokens)
    : encoder_(encoder), chat_template_(chat_template), train_on_prompt_(train_on_prompt), special_tokens_(special_tokens) {}

Example ExampleBuilder::build(const ordered_json& record, DataFormat format) const {
  if (!record.is_object()) throw RecordError("", fmt::format("expected an object, found {}", type_of(record)));
  Example example;
  switch (format) {
    case DataFormat::messages:
    case DataFormat::sharegpt:
      example = build_chat(chat_of(record, format), "messages");
      break;
    case DataFormat::completion:
      example = is_chat(record, format) ? build_chat(chat_of(record, format, train_on_prompt_), "prompt")
                                        : build_completion(string_field(record, "prompt"), string_field(record, "completion"));
      break;
    case DataFormat::alpaca:
      example = build_completion(alpaca_prompt(record),
                                 string_field(record, "output"));
      break;
    case DataFormat::text:
      example = build_text(string_field(record, "text"));
      break;
    case DataFormat::tokens:
      example = build_tokens(record);
      break;
    case DataFormat::automatic:
      COTUNE_CHECK(false, "the format must be known");
  }
  if (!example.learned.empty()) example.learned[0] = 0;
  return example;
}

LeftOut ExampleBuilder::left_out(const ordered_json& record, DataFormat format) const {
  if (format == DataFormat::alpaca || (format == DataFormat::completion && !is_chat(record, format))) {
    LeftOut found;
    found.system = holds_something(record, "system");
    found.history = holds_something(record, "history");
    found.context = format == DataFormat::alpaca && holds_something(record, "context");
    return found;
  }
  if (!is_chat(record, format) || !chat_template_) return {};
  const ordered_json chat = chat_of(record, format);
  return chat_template_->left_out(chat["messages"], tools_of_chat(chat));
}

std::string ExampleBuilder::plain_special_text(const ordered_json& record, DataFormat format) const {
  if (special_tokens_ == SpecialTokens::parsed || is_chat(record, format)) return "";
  for (const std::string_view field : text_fields(format)) {
    const auto found = record.find(field);
    if (found == record.end() || !found->is_string()) continue;
    const auto& text = found->get_ref<const std::string&>();
    const std::vector<SpecialMatch> matches = encoder_.find_special(text);
    const auto special = std::ranges::find_if(matches, &SpecialMatch::is_special);
    if (special != matches.end()) return text.substr(special->begin, special->end - special->begin);
  }
  return "";
}

void ExampleBuilder::check(const ordered_json& record, DataFormat format) {
  switch (format) {
    case DataFormat::messages:
    case DataFormat::sharegpt: chat_of(record, format); return;
    case DataFormat::completion:
      if (is_chat(record, format)) {
        chat_of(record, format);
        return;
      }
      string_field(record, "prompt");
      string_field(record, "completion");
      return;
    case DataFormat::alpaca:
      alpaca_prompt(record);
      string_field(record, "output");
      return;
    case DataFormat::text: string_field(record, "text"); return;
    case DataFormat::tokens: build_tokens(record); return;
    case DataFormat::automatic: COTUNE_CHECK(false, "the format must be known");
  }
}

Example ExampleBuilder::build_chat(const ordered_json& chat, const char* field) const {
  Example example;
  try {
    encoder_.need_tokenizer();
    if (!chat_template_) throw_user_error("the model has no chat template; set data.chat_template, or use another format");
    encode_training_text(chat_template_->for_training(chat["messages"], tools_of_chat(chat), encoder_, train_on_prompt_), encoder_,
                         example);
  } catch (const UserError& error) {
    throw RecordError(field, error.what());
  }
  return example;
}

Example ExampleBuilder::build_tokens(const ordered_json& record) {
  const auto whole_numbers = [&](const char* name, int64_t lowest) {
    const auto found = record.find(name);
    if (found == record.end()) throw RecordError(name, "missing; expected a list of token ids");
    if (!found->is_array()) throw RecordError(name, fmt::format("expected a list of token ids, found {}", type_of(*found)));
    std::vector<int64_t> values;
    for (const ordered_json& item : *found) {
      constexpr int64_t highest = std::numeric_limits<int32_t>::max();
      const bool is_huge = item.is_number_unsigned() && item.get<uint64_t>() > static_cast<uint64_t>(highest);
      if (!item.is_number_integer() || is_huge || item.get<int64_t>() < lowest) {
        throw RecordError(fmt::format("{}[{}]", name, values.size()),
                          fmt::format("expected a token id{}, found {}", lowest < 0 ? " or -100" : "", item.dump()));
      }
      values.push_back(item.get<int64_t>());
    }
    return values;
  };
  const std::vector<int64_t> ids = whole_numbers("input_ids", 0), labels = whole_numbers("labels", -100);
  if (ids.size() != labels.size()) {
    throw RecordError("labels", fmt::format("expected as many as input_ids ({}), found {}", ids.size(), labels.size()));
  }
  const TokenRange kept = attended_tokens(record, ids.size());
  Example example;
  for (size_t i = kept.begin; i < kept.end; ++i) {
    if (labels[i] != -100 && labels[i] != ids[i]) {
      throw RecordError(fmt::format("labels[{}]", i),
                        fmt::format("expected -100 or the token itself ({}), found {}", ids[i], labels[i]));
    }
    example.tokens.push_back(static_cast<int32_t>(ids[i]));
    example.learned.push_back(labels[i] != -100);
  }
  return example;
}

void ExampleBuilder::append_text(Example& example, const std::string& text, size_t learned_begin) const {
  const std::vector<ByteRange> learned{{learned_begin, text.size()}};
  if (special_tokens_ == SpecialTokens::parsed) {
    encode_training_text({jinja::Text(text), learned}, encoder_, example);
  } else if (learned_begin == 0 || learned_begin == text.size()) {
    append(example, encoder_.encode_plain(text), learned_begin == 0);
  } else {
    append_stretch({text, learned}, 0, text.size(), encoder_, example);
  }
}

Example ExampleBuilder::framed(const Example& text, bool learns_prefix) const {
  const bool may_have_own = special_tokens_ == SpecialTokens::parsed;
  const std::vector<int32_t> prefix = encoder_.prefix();
  const std::optional<int32_t> eos = encoder_.eos_id();
  const bool has_prefix = may_have_own && std::ranges::mismatch(prefix, text.tokens).in1 == prefix.end();
  const bool has_eos = may_have_own && eos && !text.tokens.empty() && text.tokens.back() == *eos && text.learned.back() != 0;
  Example example;
  if (!has_prefix) append(example, prefix, learns_prefix);
  example.tokens.insert(example.tokens.end(), text.tokens.begin(), text.tokens.end());
  example.learned.insert(example.learned.end(), text.learned.begin(), text.learned.end());
  if (eos && !has_eos) append(example, std::span(&*eos, 1), true);
  return example;
}

Example ExampleBuilder::build_completion(const std::string& prompt, const std::string& completion) const {
  Example text;
  if (encoder_.marks_spaces()) {
    append_text(text, prompt + completion, train_on_prompt_ ? 0 : prompt.size());
  } else {
    append_text(text, prompt, train_on_prompt_ ? 0 : prompt.size());
    append_text(text, completion, 0);
  }
  return framed(text, train_on_prompt_);
}

Example ExampleBuilder::build_text(const std::string& text) const {
  Example example;
  append_text(example, text, 0);
  return framed(example, true);
}

uint64_t ExampleBuilder::content_key(const ordered_json& record, DataFormat format) {
  if (format == DataFormat::tokens && record.contains("attention_mask")) return content_key(without_padding(record), format);
  uint64_t key = 0;
  const auto mix = [&](const ordered_json& holder, const char* name) {
    const auto found = holder.find(name);
    std::string text;
    if (found != holder.end() && !found->is_null()) {
      text = found->is_string() ? found->get_ref<const std::string&>() : found->dump();
    }
    key = mix_key(key, key_of(text));
  };
  if (is_chat(record, format)) {
    const ordered_json chat = chat_of(record, format);
    for (const ordered_json& message : chat["messages"]) {
      for (const char* name : {"role", "content", "tool_calls"}) mix(message, name);
    }
    return key;
  }
  for (const char* name : {"prompt", "completion", "instruction", "input", "output", "text", "input_ids", "labels"}) mix(record, name);
  return key;
}

}  // namespace cotune
