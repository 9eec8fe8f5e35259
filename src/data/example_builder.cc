#include "data/example_builder.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/error.h"
#include "base/random.h"
#include "data/records/alpaca.h"
#include "data/records/jsonl.h"
#include "data/records/sharegpt.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

void check_tool_calls(const ordered_json& calls, const std::string& place) {
  if (!calls.is_array()) throw RecordError(place, fmt::format("expected a list of calls, found {}", type_of(calls)));
  for (size_t i = 0; i < calls.size(); ++i) {
    const ordered_json& call = calls[i].is_object() && calls[i].contains("function") ? calls[i]["function"] : calls[i];
    if (call.is_object() && call.contains("name") && call["name"].is_string()) continue;
    throw RecordError(fmt::format("{}[{}]", place, i),
                      "expected {\"type\": \"function\", \"function\": {\"name\": …, \"arguments\": …}}");
  }
}

void check_message(const ordered_json& message, const std::string& place) {
  static constexpr std::array<std::string_view, 7> roles = {"system", "developer",    "user",     "assistant",
                                                            "tool",   "tool_results", "ipython"};
  if (!message.is_object()) throw RecordError(place, fmt::format("expected an object, found {}", type_of(message)));
  const auto role = message.find("role");
  if (role == message.end()) throw RecordError(place + ".role", "missing; expected a string");
  if (!role->is_string() ||
      std::find(roles.begin(), roles.end(), role->get_ref<const std::string&>()) == roles.end()) {
    throw RecordError(place + ".role", fmt::format("expected one of {}; found {}", fmt::join(roles, ", "),
                                                   role->is_string() ? role->dump() : type_of(*role)));
  }
  const auto content = message.find("content");
  const bool has_calls = message.contains("tool_calls") && !message["tool_calls"].is_null();
  if (has_calls) check_tool_calls(message["tool_calls"], place + ".tool_calls");
  if (content == message.end() || content->is_null()) {
    if (!has_calls) {
      throw RecordError(place + ".content", content == message.end() ? "missing; expected a string"
                                                                     : "expected a string, found null");
    }
  } else if (!content->is_string()) {
    throw RecordError(place + ".content", fmt::format("expected a string, found {}", type_of(*content)));
  }
  const auto weight = message.find("weight");
  if (weight != message.end() && !(weight->is_number() && (*weight == 0 || *weight == 1))) {
    throw RecordError(place + ".weight", fmt::format("expected 0 or 1, found {}", type_of(*weight)));
  }
}

ordered_json tools_in(const std::string& text) {
  try {
    return parse_json_line(text);
  } catch (const std::runtime_error& error) {
    throw RecordError("tools", fmt::format("expected a list, or the JSON text of one, found a string: {}", error.what()));
  }
}

void check_chat(const ordered_json& record) {
  const auto messages = record.find("messages");
  if (messages == record.end()) throw RecordError("messages", "missing; expected a list of messages");
  if (!messages->is_array() || messages->empty()) {
    throw RecordError("messages", fmt::format("expected a list of at least one message, found {}",
                                              messages->is_array() ? "an empty one" : type_of(*messages)));
  }
  for (size_t i = 0; i < messages->size(); ++i) check_message((*messages)[i], fmt::format("messages[{}]", i));
  tools_of_chat(record);
}

bool overlaps(std::span<const ByteRange> ranges, size_t begin, size_t end) {
  const auto next = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                     [](size_t position, const ByteRange& range) { return position < range.end; });
  return next != ranges.end() && next->begin < end;
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

/// Tokens of the plain stretch [begin, end) of the text.
void append_stretch(const TrainingText& text, size_t begin, size_t end, const TextEncoder& encoder, Example& example) {
  if (begin >= end) return;
  const std::string_view stretch = std::string_view(text.text.bytes()).substr(begin, end - begin);
  const std::vector<int32_t> tokens = encoder.encode_plain(stretch);
  std::vector<uint8_t> learned;
  size_t at = 0;
  for (const int32_t token : tokens) {
    const std::string bytes = encoder.token_bytes(token);
    if (stretch.substr(std::min(at, stretch.size()), bytes.size()) != bytes) break;
    learned.push_back(overlaps(text.learned, begin + at, begin + at + bytes.size()));
    at += bytes.size();
  }
  if (learned.size() == tokens.size() && at == stretch.size()) {
    example.tokens.insert(example.tokens.end(), tokens.begin(), tokens.end());
    example.learned.insert(example.learned.end(), learned.begin(), learned.end());
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
    const auto part = std::string_view(text.text.bytes()).substr(cuts[i], cuts[i + 1] - cuts[i]);
    const std::vector<int32_t> part_tokens = encoder.encode_plain(part);
    example.tokens.insert(example.tokens.end(), part_tokens.begin(), part_tokens.end());
    example.learned.resize(example.tokens.size(), overlaps(text.learned, cuts[i], cuts[i + 1]));
  }
}

}  // namespace

ordered_json tools_of_chat(const ordered_json& record) {
  const auto found = record.find("tools");
  if (found == record.end() || found->is_null()) return nullptr;
  if (found->is_array()) return *found;
  if (found->is_string()) {
    const auto& text = found->get_ref<const std::string&>();
    if (text.empty()) return nullptr;
    ordered_json tools = tools_in(text);
    if (tools.is_array()) return tools.empty() ? ordered_json() : std::move(tools);
  }
  throw RecordError("tools", fmt::format("expected a list, or the JSON text of one, found {}", type_of(*found)));
}

void encode_training_text(const TrainingText& text, const TextEncoder& encoder, Example& example) {
  size_t at = 0;
  for (const SpecialMatch& special : trusted_special_tokens(text.text, encoder)) {
    append_stretch(text, at, special.begin, encoder, example);
    example.tokens.push_back(special.id);
    example.learned.push_back(overlaps(text.learned, special.begin, special.end));
    at = special.end;
  }
  append_stretch(text, at, text.text.size(), encoder, example);
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
  static const std::vector<std::string> fields = {"messages", "conversations", "system", "tools", "prompt",    "completion",
                                                  "instruction", "input",      "output", "text",  "input_ids", "labels"};
  return fields;
}

ExampleBuilder::ExampleBuilder(const TextEncoder& encoder, const ChatTemplate* chat_template, bool train_on_prompt)
    : encoder_(encoder), chat_template_(chat_template), train_on_prompt_(train_on_prompt) {}

Example ExampleBuilder::build(const ordered_json& record, DataFormat format) const {
  if (!record.is_object()) throw RecordError("", fmt::format("expected an object, found {}", type_of(record)));
  Example example;
  switch (format) {
    case DataFormat::messages:
      example = build_chat(record);
      break;
    case DataFormat::sharegpt:
      example = build_chat(messages_of_sharegpt(record));
      break;
    case DataFormat::completion:
      example = build_completion(string_field(record, "prompt"), string_field(record, "completion"));
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
  if (format == DataFormat::sharegpt) return left_out(messages_of_sharegpt(record), DataFormat::messages);
  if (format != DataFormat::messages || !chat_template_) return {};
  return chat_template_->left_out(record["messages"], tools_of_chat(record));
}

void ExampleBuilder::check(const ordered_json& record, DataFormat format) {
  switch (format) {
    case DataFormat::messages: return check_chat(record);
    case DataFormat::sharegpt: return check_chat(messages_of_sharegpt(record));
    case DataFormat::completion:
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

Example ExampleBuilder::build_chat(const ordered_json& record) const {
  check_chat(record);
  if (!chat_template_) {
    throw RecordError("messages", "the model has no chat template; set data.chat_template, or use another format");
  }
  Example example;
  try {
    encode_training_text(chat_template_->for_training(record["messages"], tools_of_chat(record), encoder_, train_on_prompt_), encoder_,
                         example);
  } catch (const UserError& error) {
    throw RecordError("messages", error.what());
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
      if (!item.is_number_integer() || item.get<int64_t>() < lowest || item.get<int64_t>() > highest) {
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
  Example example;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (labels[i] != -100 && labels[i] != ids[i]) {
      throw RecordError(fmt::format("labels[{}]", i),
                        fmt::format("expected -100 or the token itself ({}), found {}", ids[i], labels[i]));
    }
    example.tokens.push_back(static_cast<int32_t>(ids[i]));
    example.learned.push_back(labels[i] != -100);
  }
  return example;
}

void ExampleBuilder::append(Example& example, std::span<const int32_t> tokens, bool learned) const {
  example.tokens.insert(example.tokens.end(), tokens.begin(), tokens.end());
  example.learned.resize(example.tokens.size(), learned);
}

void ExampleBuilder::append_eos(Example& example) const {
  if (const auto eos = encoder_.eos_id()) append(example, std::span(&*eos, 1), true);
}

Example ExampleBuilder::build_completion(const std::string& prompt, const std::string& completion) const {
  Example example;
  append(example, encoder_.prefix(), train_on_prompt_);
  append(example, encoder_.encode_plain(prompt), train_on_prompt_);
  append(example, encoder_.encode_plain(completion), true);
  append_eos(example);
  return example;
}

Example ExampleBuilder::build_text(const std::string& text) const {
  Example example;
  append(example, encoder_.prefix(), true);
  append(example, encoder_.encode_plain(text), true);
  append_eos(example);
  return example;
}

uint64_t ExampleBuilder::content_key(const ordered_json& record, DataFormat format) {
  uint64_t key = 0;
  const auto mix = [&](const ordered_json& holder, const char* name) {
    const auto found = holder.find(name);
    std::string text;
    if (found != holder.end() && !found->is_null()) {
      text = found->is_string() ? found->get_ref<const std::string&>() : found->dump();
    }
    key = mix_key(key, key_of(text));
  };
  if (format == DataFormat::sharegpt) return content_key(messages_of_sharegpt(record), DataFormat::messages);
  if (format == DataFormat::messages) {
    for (const ordered_json& message : record["messages"]) {
      for (const char* name : {"role", "content", "tool_calls"}) mix(message, name);
    }
    return key;
  }
  for (const char* name : {"prompt", "completion", "instruction", "input", "output", "text", "input_ids", "labels"}) mix(record, name);
  return key;
}

}  // namespace cotune
