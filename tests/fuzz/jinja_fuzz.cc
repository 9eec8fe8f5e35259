/// Any bytes as a template, and behind a line of ===== a record, either render its chat within small limits and mark what of it is learned, or
/// are refused as the user's mistake.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "byte_encoder.h"
#include "data/example_builder.h"
#include "data/records/chat_record.h"
#include "data/records/jsonl.h"
#include "data/template/chat_template.h"

namespace {

using nlohmann::ordered_json;

constexpr std::string_view separator = "\n=====\n";

/// {messages, tools?} of the text; of none a chat of our own.
ordered_json chat_in(std::string_view text) {
  static const ordered_json own = ordered_json::parse(
      R"({"messages": [{"role": "user", "content": " h\u00e9\u4e00 "},
                       {"role": "assistant", "content": "x", "tool_calls": [{"n": 1.5}]}]})");
  if (text.empty()) return own;
  return cotune::chat_of(cotune::parse_json_line(text), cotune::DataFormat::messages);
}

void check_training(const cotune::TrainingText& training) {
  size_t at = 0;
  for (const cotune::ByteRange& range : training.learned) {
    if (range.begin < at || range.end <= range.begin || range.end > training.text.size()) std::abort();
    at = range.end;
  }
  cotune::Example example;
  cotune::encode_training_text(training, cotune::ByteEncoder(), example);
  if (example.tokens.size() != example.learned.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view source = text.substr(0, text.find(separator));
  const cotune::ChatLimits limits{.rendering = {200'000, size_t{1} << 20, 400}, .steps = 500'000};
  try {
    const ordered_json chat = chat_in(text.substr(std::min(size, source.size() + separator.size())));
    const ordered_json messages = chat["messages"], tools = cotune::tools_of_chat(chat);
    const cotune::ChatTemplate parsed(source, "fuzz", {{"bos_token", "<s>"}, {"eos_token", "</s>"}}, {}, limits);
    try {
      parsed.render(messages, {.add_generation_prompt = true, .tools = tools});
    } catch (const cotune::UserError&) {
    }
    check_training(parsed.for_training(messages, tools, cotune::ByteEncoder(), size % 2 == 1));
    parsed.left_out(messages, tools);
  } catch (const std::runtime_error&) {  // UserError, RecordError, or not JSON
  }
  return 0;
}
