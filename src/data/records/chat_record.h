/// The chats of records, as chat templates take them.
#pragma once

#include <nlohmann/json.hpp>

#include "jobs/job.h"

namespace cotune {

/// Whether a record of this format is a chat: `messages`, `sharegpt`, and `completion` where prompt or completion is a list of messages,
/// as TRL's conversational data are.
bool is_chat(const nlohmann::ordered_json& record, DataFormat format);

/// {messages, tools?} of a record that is a chat, its contents texts (messages_in), its tools a list, `system` its first message
/// (add_system). Messages of a prompt have the weight 0, unless learns_prompt: only the completion's are learned.
/// Throws RecordError with the field, what was found and what is accepted.
nlohmann::ordered_json chat_of(const nlohmann::ordered_json& record, DataFormat format, bool learns_prompt = false);

/// The messages that a field of the record holds, at least one: [{role, content, weight?, tool_calls?, …}]. A content in parts,
/// [{"type": "text", "text": …}, …], becomes one text, part behind part; what message_weight finds stands in `weight`. Throws RecordError,
/// also for parts of another type and for OpenAI's older `function_call`.
nlohmann::ordered_json messages_in(const nlohmann::ordered_json& record, const char* field);

/// Makes the text `system` beside a record's messages, at least one, their first, unless that is a system's already. Throws RecordError where it
/// is no text.
void add_system(const nlohmann::ordered_json& record, nlohmann::ordered_json& messages);

/// The list of tools beside a record's messages, which may also be its JSON text; null where there are none. Throws RecordError, also for
/// OpenAI's older `functions` in their place.
nlohmann::ordered_json tools_of_chat(const nlohmann::ordered_json& record);

}  // namespace cotune
