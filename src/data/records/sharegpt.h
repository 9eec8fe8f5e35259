/// ShareGPT's conversations, as axolotl and LLaMA-Factory read them, in the form of `messages`.
#pragma once

#include <nlohmann/json.hpp>

namespace cotune {

/// {conversations: [{from, value, weight?}], system?, tools?} → {messages, tools}. Turns may also say role and content, and train or
/// training in place of weight (message_weight.h).
///
/// from: human, user → user; gpt, chatgpt, assistant, model, bot, bing, bard → assistant; system; developer; tool, observation,
///   function_response, tool_response → tool; function_call, tool_call → an assistant message whose tool_calls are the JSON
///   object, or list of them, {name, arguments} in value.
/// system: a text, which becomes the first message, unless the first turn is a system's, which wins (as in LLaMA-Factory).
///
/// Throws RecordError with the field, what was found and what is accepted.
nlohmann::ordered_json messages_of_sharegpt(const nlohmann::ordered_json& record);

}  // namespace cotune
