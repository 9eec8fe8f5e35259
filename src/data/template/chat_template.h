/// Chat templates: messages → the text that a model was trained on, and which bytes of it a fine-tuning job learns.
#pragma once

#include <ctime>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/template/chat_renderings.h"
#include "data/template/jinja.h"
#include "data/text_encoder.h"

namespace cotune {

/// Bytes [begin, end) of a text.
struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

/// A rendered chat and the bytes to learn, ascending and disjoint.
struct TrainingText {
  jinja::Text text;
  std::vector<ByteRange> learned;
};

struct RenderOptions {
  bool add_generation_prompt = false;
  nlohmann::ordered_json tools;      ///< null or a list of tools, as transformers takes them
  std::optional<std::tm> now;        ///< what strftime_now sees; absent: as in training
};

/// What of a record stands in no example, though nothing is wrong with it.
struct LeftOut {
  bool tool_calls = false;  ///< of one message at least, at which the chat's template does not look
  bool tools = false;       ///< the list beside the messages, the same
  bool system = false;      ///< a text beside Alpaca's fields, whose prompt has no place for it, or beside a prompt that is a text
  bool history = false;     ///< earlier turns beside them, the same
  bool context = false;     ///< beside Alpaca's fields, where it is called `input`
};

/// A model's template, or its two. strftime_now, where nobody says what it sees, is undefined to a template that asks whether it is defined, and
/// 26 July 2024 to others: texts do not depend on the day. Immutable; may be used by several threads at once.
class ChatTemplate {
 public:
  /// `name` stands in messages. `special_tokens`: the variables bos_token, eos_token, … as far as the model has them.
  /// `tool_use`: the source for chats that come with tools, be their list empty, as transformers chooses it; "": the same
  /// for all. `source`: "" where the model has one for chats with tools alone; others are then a mistake. Throws UserError
  /// `name:line: reason` when a template cannot be parsed. `limits`: of every call below.
  ChatTemplate(std::string_view source, std::string name, std::map<std::string, std::string> special_tokens,
               std::string_view tool_use = {}, const ChatLimits& limits = {});

  /// The text, equal to transformers' apply_chat_template(tokenize=False). `messages`: an array of objects. Origins of
  /// its bytes: see ChatRenderings. Throws UserError when the template refuses the messages.
  jinja::Text render(const nlohmann::ordered_json& messages, const RenderOptions& options) const;

  /// Renders a chat for training. Each assistant message is learned unless its `weight` is 0: what the model has to
  /// write from the end of the generation prompt to its end-of-turn token, that token included.
  ///
  /// Begin: messages[0, i) are rendered with the generation prompt. Where that is the beginning of the whole text
  ///   (every template of the supported families), the span begins behind it, so that what a template puts between
  ///   prompt and content (a space in Llama 2, empty thinking in Qwen 3) is learned like the content. Where it is not
  ///   (tools that move to the last question; thinking that later turns leave out), it begins behind as much of the prompt
  ///   as follows the same earlier message; where there is none (the first message is the assistant's and the template adds
  ///   a system message) or the template refuses the prefix, at the first byte that came from the message.
  /// End: behind the last special token that closes the turn: that stands in messages[0, i] rendered alone, after the
  ///   last byte of the turn that came from the message. `<|im_end|>` for ChatML, Qwen and SmolLM2 and `</s>` for Zephyr and
  ///   TinyLlama, without the newline behind it, which generation never reaches; `<|eot_id|>` for Llama 3; `</s>` for
  ///   Llama 2 and Mistral, with Llama 2's space before it. A template that closes turns with plain text only has all
  ///   of that text learned, because it is what tells the end.
  /// Throws UserError when the template refuses the messages or leaves out a message that is to be learned, and when all
  /// that is rendered takes too many steps.
  ///
  /// With `whole`, everything is learned but messages of weight 0: of the assistant's what would else be learned, of
  /// others the bytes that came from them.
  TrainingText for_training(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                            const TextEncoder& encoder, bool whole = false) const;

  /// Renders the chat again without each message's tool calls, and without its tools: what leaves the text as it was is not in it. What the
  /// limits leave no steps to tell counts as in it.
  LeftOut left_out(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools) const;

  const std::string& name() const { return name_; }
  /// Checksum of the sources and of the special tokens: templates with an equal one render equal texts.
  const std::string& hash() const { return hash_; }

 private:
  /// Throws UserError where there is none for such a chat.
  const jinja::Template& template_for(const nlohmann::ordered_json& tools) const;
  ChatRenderings renderings_of(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                               std::optional<std::tm> now = std::nullopt) const;

  std::string name_;
  std::optional<jinja::Template> template_, tool_use_;
  bool has_date_ = false, tool_use_has_date_ = false;  ///< of their own, where strftime_now is not defined
  std::map<std::string, std::string> special_tokens_;
  ChatLimits limits_;
  std::string hash_;
};

}  // namespace cotune
