#include "evaluate/choice_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "data/records/chat_record.h"
#include "data/records/record_error.h"
#include "evaluate/answer_match.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

std::vector<std::string> texts_in(const ordered_json& list, const std::string& field) {
  if (!list.is_array()) throw RecordError(field, fmt::format("expected a list of texts, found {}", type_of(list)));
  std::vector<std::string> texts;
  for (const ordered_json& item : list) {
    if (!item.is_string())
      throw RecordError(fmt::format("{}[{}]", field, texts.size()), fmt::format("expected a string, found {}", type_of(item)));
    texts.push_back(item.get<std::string>());
  }
  return texts;
}

std::vector<std::string> letters(size_t count) {
  std::vector<std::string> labels;
  for (size_t i = 0; i < std::min<size_t>(count, 26); ++i) labels.emplace_back(1, static_cast<char>('A' + i));
  return labels;
}

const char* answer_field(const ordered_json& record) {
  for (const char* name : {"answer", "answerKey", "label"}) {
    if (record.contains(name)) return name;
  }
  throw RecordError("answer", "missing; expected the right choice: its number from 0, its letter or its text");
}

size_t answer_in(const ordered_json& record, const std::vector<std::string>& choices, const std::vector<std::string>& labels) {
  const char* field = answer_field(record);
  const ordered_json& answer = record[field];
  const auto refuse = [&](const std::string& found) {
    throw RecordError(field, fmt::format("expected a number from 0 to {}, one of {}, or the text of a choice; found {}", choices.size() - 1,
                                         fmt::join(labels, ", "), found));
  };
  int64_t number = -1;
  if (answer.is_number_integer()) {
    number = answer.get<int64_t>();
  } else if (answer.is_string()) {
    const std::string text = comparable_text(answer.get<std::string>(), {});
    const auto place_in = [&](const std::vector<std::string>& texts) {
      const auto found = std::ranges::find_if(texts, [&](const std::string& each) { return is_match(each, text, {}); });
      return found == texts.end() ? -1 : found - texts.begin();
    };
    const bool has_own_labels = record["choices"].is_object() && record["choices"].contains("label");
    number = place_in(has_own_labels ? labels : choices);
    if (number < 0) number = place_in(has_own_labels ? choices : labels);
    if (number < 0 && std::from_chars(text.data(), text.data() + text.size(), number).ptr != text.data() + text.size()) number = -1;
    if (number < 0) refuse(answer.dump());
  } else {
    refuse(type_of(answer));
  }
  if (number < 0 || number >= static_cast<int64_t>(choices.size())) refuse(answer.dump());
  return static_cast<size_t>(number);
}

}  // namespace

bool has_choices(const ordered_json& record) { return record.is_object() && record.contains("choices"); }

const std::vector<std::string>& choice_fields() {
  static const std::vector<std::string> fields = {"question", "prompt", "messages", "system", "choices", "answer", "answerKey", "label"};
  return fields;
}

ChoiceRecord choice_record_of(const ordered_json& record) {
  if (!record.is_object()) throw RecordError("", fmt::format("expected an object, found {}", type_of(record)));
  ChoiceRecord result;
  if (record.contains("messages")) {
    result.messages = messages_in(record, "messages");
    add_system(record, result.messages);
    if (result.messages.back()["role"] == "assistant") throw RecordError("messages", "ends with an answer: expected the question last");
  } else {
    result.text = string_field(record, record.contains("question") ? "question" : "prompt");
  }
  std::vector<std::string> labels;
  if (!record.contains("choices")) throw RecordError("choices", "missing; expected a list of texts");
  const ordered_json& choices = record["choices"];
  if (choices.is_object() && choices.contains("text")) {
    result.choices = texts_in(choices["text"], "choices.text");
    if (choices.contains("label")) labels = texts_in(choices["label"], "choices.label");
  } else {
    result.choices = texts_in(choices, "choices");
  }
  if (result.choices.size() < 2) throw RecordError("choices", fmt::format("expected at least two texts, found {}", result.choices.size()));
  for (size_t i = 0; i < result.choices.size(); ++i) {
    if (comparable_text(result.choices[i], {}).empty()) throw RecordError(fmt::format("choices[{}]", i), "is empty");
  }
  if (!labels.empty() && labels.size() != result.choices.size()) {
    throw RecordError("choices.label", fmt::format("has {} entries for {} texts", labels.size(), result.choices.size()));
  }
  if (labels.empty()) labels = letters(result.choices.size());
  result.answer = answer_in(record, result.choices, labels);
  return result;
}

}  // namespace cotune
