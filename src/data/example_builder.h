/// One JSON record → one Example.
///
/// messages    [{role, content, weight?, tool_calls?, …}], with `tools` beside it (chat_record.h): the chat template's text and
///             learned spans (chat_template.h).
/// sharegpt    {conversations: [{from, value}]}: as messages (sharegpt.h).
/// completion  {prompt, completion}: prefix + tokens(prompt) + tokens(completion) + eos, the last two learned. Prompt and
///             completion are tokenized apart, as in use, where the prompt is all that the model is given: no token
///             straddles them, and joining them may give other tokens. Where both are lists of messages: one chat of both, in
///             which the completion's messages of the assistant are learned.
/// alpaca      {instruction, input?, output}: as prompt and completion, with the prompt of Stanford Alpaca and a
///             newline behind its "### Response:".
/// tokens      {input_ids, labels, attention_mask?}: as given, without padding (token_padding.h); a label is its own token, or -100 where
///             nothing is learned.
/// text        {text}: prefix + tokens(text) + eos, all learned but the first.
///
/// Special tokens come from templates alone: in a chat, where they stand entirely within the template's own text; in
/// the other formats nowhere in the data. The same characters in a message are plain characters. With SpecialTokens::parsed,
/// prompt, completion, alpaca and text are read as a template's own text: what stands there of special tokens are tokens, and
/// prefix and eos are added where the text does not begin or end with them itself. Between special tokens, template text and
/// messages are tokenized as one string, so that tokens form across their borders as they do in use, but what is learned apart
/// from what stands before it, which in use is all that the model is given (except where TextEncoder::marks_spaces). Where no message
/// holds the text of a special token and no answer begins with what a token joins to the prompt's end (a newline behind a newline),
/// the tokens equal those of the rendered text.
/// A token of a chat is learned when at least one of its bytes is.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/example.h"
#include "data/records/record_error.h"
#include "data/template/chat_template.h"
#include "jobs/job.h"

namespace cotune {

/// The format that a record's fields say; automatic when they say none.
DataFormat format_of(const nlohmann::ordered_json& record);
/// `messages`, `prompt and completion`, …: for messages to users.
std::string_view format_fields(DataFormat format);
/// Those that every record of a format has; of automatic none.
std::span<const std::string_view> required_fields(DataFormat format);
/// Every field that some format reads; others are ignored.
const std::vector<std::string>& record_fields();

class ExampleBuilder {
 public:
  /// Both must outlive the builder. `chat_template` may be null: then records with messages are a mistake.
  ExampleBuilder(const TextEncoder& encoder, const ChatTemplate* chat_template, bool train_on_prompt,
                 SpecialTokens special_tokens = SpecialTokens::plain);

  /// The whole example, not truncated; `source` and `line` are left empty. Throws RecordError with the field, what was
  /// found and what is accepted. An example may come without a learned token.
  Example build(const nlohmann::ordered_json& record, DataFormat format) const;

  /// What template or prompt leave out of a record that build() takes. Throws RecordError.
  LeftOut left_out(const nlohmann::ordered_json& record, DataFormat format) const;

  /// The first text of a special token in a record that build() takes which is plain characters there though the record is no chat, as in
  /// chats that were rendered beforehand; "": there is none.
  std::string plain_special_text(const nlohmann::ordered_json& record, DataFormat format) const;

  /// What build() finds wrong with a record before it needs tokenizer or template.
  static void check(const nlohmann::ordered_json& record, DataFormat format);

  /// A key of what the record says (roles and contents; prompt and completion; …), for splitting: equal for duplicates.
  static uint64_t content_key(const nlohmann::ordered_json& record, DataFormat format);

 private:
  /// field: in which the record has the chat.
  Example build_chat(const nlohmann::ordered_json& chat, const char* field) const;
  Example build_completion(const std::string& prompt, const std::string& completion) const;
  static Example build_tokens(const nlohmann::ordered_json& record);
  Example build_text(const std::string& text) const;
  /// The tokens of a text, learned from byte learned_begin on.
  void append_text(Example& example, const std::string& text, size_t learned_begin) const;
  /// The same within the prefix and the end-of-text token.
  Example framed(const Example& text, bool learns_prefix) const;

  const TextEncoder& encoder_;
  const ChatTemplate* chat_template_;
  bool train_on_prompt_;
  SpecialTokens special_tokens_;
};

/// Tokens and labels of a rendered text, by the rules above. Where a tokenizer changes the text first (normalisation),
/// so that tokens cannot be matched to bytes, the stretch is cut at the borders of the learned spans and its parts are
/// tokenized apart.
void encode_training_text(const TrainingText& text, const TextEncoder& encoder, Example& example);

}  // namespace cotune
