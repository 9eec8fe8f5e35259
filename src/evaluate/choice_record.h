/// Questions with choices, one of which is right.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cotune {

/// {question or prompt or messages, choices, answer}: what is asked, the texts to choose from, and the right one. choices: a list of
/// at least two texts, or {text: […], label: […]} as ARC has them. answer (or answerKey, or label): a number, counted from 0; or a text: one
/// of the choices, else one of their labels, which are A, B, … where none are given, else a number. `system` beside messages is their first
/// (data/records/chat_record.h).
struct ChoiceRecord {
  nlohmann::ordered_json messages;  ///< null: there is a text
  std::string text;
  std::vector<std::string> choices;
  size_t answer = 0;
};

bool has_choices(const nlohmann::ordered_json& record);

/// Throws RecordError with the field, what was found and what is accepted.
ChoiceRecord choice_record_of(const nlohmann::ordered_json& record);

/// The fields that are read.
const std::vector<std::string>& choice_fields();

}  // namespace cotune
