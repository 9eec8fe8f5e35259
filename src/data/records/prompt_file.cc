#include "data/records/prompt_file.h"

#include "base/error.h"
#include "data/example_builder.h"
#include "data/records/alpaca.h"
#include "data/records/chat_record.h"
#include "data/records/jsonl.h"
#include "data/records/record_error.h"
#include "data/records/sharegpt.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

DataFile opened(const std::filesystem::path& path) {
  try {
    return DataFile(path, prompt_fields());
  } catch (const UserError& error) {
    throw_user_error("{}: {}", path.string(), error.what());
  }
}

bool is_plain_text(const std::filesystem::path& extension, const std::string& first_line) {
  if (extension == ".txt") return true;
  if (extension == ".jsonl" || extension == ".json") return false;
  return first_line.find_first_not_of(" \t") != first_line.find('{');
}

void take_chat(const ordered_json& chat, const char* field, FilePrompt& prompt) {
  prompt.messages = messages_in(chat, field);
  add_system(chat, prompt.messages);
  prompt.tools = tools_of_chat(chat);
  while (!prompt.messages.empty() && prompt.messages.back()["role"] == "assistant") {
    prompt.messages.erase(prompt.messages.size() - 1);
  }
  if (prompt.messages.empty()) throw RecordError(field, "nothing is asked: expected a message that is not the assistant's");
}

/// Under which name a record without a chat or a prompt asks; nullptr: none.
const char* name_of_question(const ordered_json& record) {
  for (const char* name : {"question", "query", "problem"}) {
    if (record.contains(name)) return name;
  }
  return nullptr;
}

/// The record with `text` under another name, in its place.
ordered_json with_text_as_prompt(const ordered_json& record) {
  ordered_json renamed = ordered_json::object();
  for (const auto& [name, value] : record.items()) renamed[name == "text" ? "prompt" : name] = value;
  return renamed;
}

}  // namespace

const std::vector<std::string>& prompt_fields() {
  static const std::vector<std::string> fields = [] {
    std::vector<std::string> all = record_fields();
    for (const char* own : {"id", "question", "query", "problem", "choices", "answer", "label", "target", "category"}) all.push_back(own);
    return all;
  }();
  return fields;
}

FilePrompt prompt_of(ordered_json record) {
  if (!record.is_object()) throw RecordError("", fmt::format("expected an object, found {}", type_of(record)));
  FilePrompt prompt;
  if (record.contains("messages")) {
    take_chat(record, "messages", prompt);
  } else if (record.contains("conversations")) {
    take_chat(messages_of_sharegpt(record), "messages", prompt);
  } else if (record.contains("prompt") && record["prompt"].is_array()) {
    take_chat(record, "prompt", prompt);
  } else if (record.contains("prompt")) {
    prompt.text = string_field(record, "prompt");
  } else if (record.contains("instruction")) {
    prompt.text = alpaca_prompt(record);
    prompt.is_whole_text = true;
  } else if (const char* question = name_of_question(record)) {
    prompt.text = string_field(record, question);
  } else if (record.contains("text")) {
    prompt.text = string_field(record, "text");
    prompt.only_raw = true;
    record = with_text_as_prompt(record);
  } else {
    std::string names;
    for (const auto& [name, value] : record.items()) names += (names.empty() ? "" : ", ") + name.substr(0, 40);
    throw RecordError("", fmt::format("expected the field messages, conversations, prompt, instruction, question, query, problem or text; found {}",
                                      names.empty() ? "none" : names.substr(0, 200)));
  }
  prompt.record = std::move(record);
  return prompt;
}

PromptFile::PromptFile(std::filesystem::path path) : path_(std::move(path)), file_(opened(path_)) {}

bool PromptFile::advance() {
  try {
    return file_.lines().next();
  } catch (const UserError& error) {
    throw_user_error("{}: {}", path_.string(), error.what());
  }
}

std::optional<FilePrompt> PromptFile::next() {
  const RecordLines& lines = file_.lines();
  if (is_list_) return std::nullopt;
  if (!advance()) {
    if (file_.is_broken()) throw_user_error("{}:{}: cannot read the file to its end", path_.string(), lines.line());
    return std::nullopt;
  }
  Diagnostics mistake;
  try {
    if (lines.too_long()) throw UserError(lines.too_long_complaint());
    if (!begun_) {
      is_plain_ = is_plain_text(path_.extension(), lines.text());
      is_list_ = !is_plain_ && lines.text().starts_with('[');
    }
    begun_ = true;
    if (is_list_) throw UserError(std::string(list_complaint));
    FilePrompt prompt = prompt_of(is_plain_ ? ordered_json{{"prompt", lines.text()}} : parse_json_line(lines.text()));
    prompt.line = lines.line();
    return prompt;
  } catch (const RecordError& error) {
    mistake.add(path_.string(), lines.line(), error.field(), error.what());
  } catch (const std::exception& error) {
    mistake.add(path_.string(), lines.line(), "", complaint_of(error));
  }
  mistake.throw_if_any();
  return std::nullopt;
}

}  // namespace cotune
