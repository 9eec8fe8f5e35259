/// Any bytes as a record of a file of prompts give something to answer, or the mistake; as an answer, however they are cut, the same text
/// before the stop texts.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "data/records/conversation.h"
#include "data/records/jsonl.h"
#include "data/records/prompt_file.h"
#include "data/records/record_error.h"
#include "data/stop_texts.h"

namespace {

void check_prompt(std::string_view text) {
  try {
    const cotune::FilePrompt prompt = cotune::prompt_of(cotune::parse_json_line(text));
    if (prompt.messages.is_null()) return;
    if (prompt.messages.empty() || prompt.messages.back()["role"] == "assistant") std::abort();
    cotune::Conversation chat = cotune::Conversation::from_messages(prompt.messages);
    chat.answer(text);
    chat.undo();
    chat.begin_anew();
  } catch (const std::runtime_error&) {  // RecordError, or not JSON
  }
}

void check_stop_texts(std::string_view text) {
  const size_t middle = text.size() / 2;
  const auto shown = [&](size_t step) {
    cotune::StopTexts scanner({std::string(text.substr(middle, 1)), std::string(text.substr(middle, 3)), std::string(text.substr(text.size() - text.size() / 4))});
    std::string result;
    for (size_t i = 0; i < text.size(); i += step) result += scanner.add(text.substr(i, step));
    if (!scanner.found()) result += scanner.finish();
    return result;
  };
  const std::string whole = shown(text.size() + 1);
  if (text.substr(0, whole.size()) != whole || shown(1) != whole || shown(3) != whole) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  check_prompt(text);
  if (size < 4096) check_stop_texts(text);
  return 0;
}
