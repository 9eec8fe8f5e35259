/// Tokens of texts that may go on behind one prompt, for comparing how likely they are.
///
/// A tokenizer whose tokens hold spaces of their own (TextEncoder::marks_spaces) gives other tokens to a text by itself than behind
/// another. There, each prompt and continuation are encoded as one text, as a training example's prompt and answer are (example_builder.h).
/// Other tokenizers encode a continuation by itself.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "data/template/chat_template.h"
#include "data/text_encoder.h"

namespace cotune {

/// prompt and each of `continuations`, joined, are the tokens of prompt and continuation. The prompt ends where the first continuation
/// begins, or already where the tokens of two of them part.
struct Continuations {
  std::vector<int32_t> prompt;
  std::vector<std::vector<int32_t>> continuations;
};

/// As the assistant's answer to a chat: what the template puts before it goes with it, where prompt and answer are encoded as one text.
/// Throws UserError as the template does.
Continuations continue_chat(const ChatTemplate& chat, const nlohmann::ordered_json& messages, std::span<const std::string> texts,
                            const TextEncoder& encoder);

/// In place of the answer of an example, in white space as that begins with. prompt, answer: the example's tokens.
Continuations continue_example(std::span<const int32_t> prompt, std::span<const int32_t> answer, std::span<const std::string> texts,
                               const TextEncoder& encoder);

}  // namespace cotune
