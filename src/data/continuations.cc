#include "data/continuations.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "base/error.h"
#include "data/example_builder.h"

namespace cotune {
namespace {

/// The text to the last byte that came from a message; of what is learned the part since the last beginning.
TrainingText to_end_of_message(const TrainingText& text, jinja::Origin message) {
  size_t end = text.text.size();
  while (end > 0 && text.text.origin_at(end - 1) != message) --end;
  if (text.learned.empty() || end <= text.learned.back().begin) throw UserError("the chat template leaves out a choice");
  return {text.text.slice(0, end), {{text.learned.back().begin, end}}};
}

/// at_most: tokens of the prompt.
Continuations parted(const std::vector<std::vector<int32_t>>& wholes, size_t at_most) {
  Continuations result;
  size_t shared = at_most;
  for (const std::vector<int32_t>& whole : wholes) {
    const auto end = std::ranges::mismatch(whole, wholes.front()).in1;
    shared = std::min(shared, static_cast<size_t>(end - whole.begin()));
  }
  for (const std::vector<int32_t>& whole : wholes) {
    result.prompt.assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(shared));
    result.continuations.emplace_back(whole.begin() + static_cast<std::ptrdiff_t>(shared), whole.end());
  }
  return result;
}

Continuations apart(std::vector<int32_t> prompt, const std::string& space, std::span<const std::string> texts, const TextEncoder& encoder) {
  Continuations result{std::move(prompt), {}};
  for (const std::string& text : texts) result.continuations.push_back(encoder.encode_plain(space + text));
  return result;
}

std::string bytes_of(std::span<const int32_t> tokens, const TextEncoder& encoder) {
  std::string bytes;
  for (const int32_t token : tokens) bytes += encoder.token_bytes(token);
  return bytes;
}

bool is_added(int32_t token, const TextEncoder& encoder) {
  const std::vector<SpecialMatch> found = encoder.find_special(encoder.token_bytes(token));
  return found.size() == 1 && found[0].id == token;
}

/// A text without added tokens, and how it was encoded.
struct Stretch {
  std::string text;
  bool at_text_start = false;
};

/// What was encoded to these tokens: their bytes, or those without the space that the tokenizer put before them.
std::optional<Stretch> stretch_of(std::span<const int32_t> tokens, const TextEncoder& encoder) {
  const std::string bytes = bytes_of(tokens, encoder);
  for (const bool at_text_start : {true, false}) {
    for (const size_t added : {0, 1}) {
      if (added == 1 && !bytes.starts_with(' ')) continue;
      Stretch stretch{bytes.substr(added), at_text_start};
      if (std::ranges::equal(encoder.encode_plain(stretch.text, at_text_start), tokens)) return stretch;
    }
  }
  return std::nullopt;
}

std::string white_space_before(const std::string& text) {
  return text.substr(0, std::min(text.find_first_not_of(" \t\n\r"), text.size()));
}

}  // namespace

Continuations continue_chat(const ChatTemplate& chat, const nlohmann::ordered_json& messages, std::span<const std::string> texts,
                            const TextEncoder& encoder) {
  if (!encoder.marks_spaces()) {
    Example prompt;
    encode_training_text({chat.render(messages, {.add_generation_prompt = true}), {}}, encoder, prompt);
    return apart(prompt.tokens, "", texts, encoder);
  }
  std::vector<std::vector<int32_t>> wholes;
  size_t of_prompt = SIZE_MAX;
  for (const std::string& text : texts) {
    nlohmann::ordered_json answered = messages;
    answered.push_back({{"role", "assistant"}, {"content", text}});
    const TrainingText whole = to_end_of_message(chat.for_training(answered, {}, encoder), static_cast<jinja::Origin>(answered.size()));
    Example example;
    encode_training_text(whole, encoder, example);
    of_prompt = std::min(of_prompt, static_cast<size_t>(std::ranges::find(example.learned, 1) - example.learned.begin()));
    wholes.push_back(example.tokens);
  }
  return parted(wholes, of_prompt);
}

Continuations continue_example(std::span<const int32_t> prompt, std::span<const int32_t> answer, std::span<const std::string> texts,
                               const TextEncoder& encoder) {
  const auto ends = [&](int32_t token) { return is_added(token, encoder); };
  const std::span<const int32_t> plain_answer(answer.begin(), std::ranges::find_if(answer, ends));
  const std::string answer_text = bytes_of(plain_answer, encoder);
  const auto apart_as_given = [&] {
    const bool is_added = encoder.marks_spaces() && answer_text.starts_with(' ');  // by the tokenizer, as it will be again
    return apart({prompt.begin(), prompt.end()}, white_space_before(answer_text).substr(is_added ? 1 : 0), texts, encoder);
  };
  if (!encoder.marks_spaces()) return apart_as_given();

  size_t begin = prompt.size();
  while (begin > 0 && !is_added(prompt[begin - 1], encoder)) --begin;
  std::vector<int32_t> tokens(prompt.begin() + static_cast<std::ptrdiff_t>(begin), prompt.end());
  tokens.insert(tokens.end(), plain_answer.begin(), plain_answer.end());
  const std::optional<Stretch> stretch = stretch_of(tokens, encoder);
  if (!stretch) return apart_as_given();
  const size_t answer_begin = stretch->text.size() - std::min(stretch->text.size(), answer_text.size());
  const std::string before = stretch->text.substr(0, answer_begin) + white_space_before(stretch->text.substr(answer_begin));
  std::vector<std::vector<int32_t>> wholes;
  for (const std::string& text : texts) {
    std::vector<int32_t>& whole = wholes.emplace_back(prompt.begin(), prompt.begin() + static_cast<std::ptrdiff_t>(begin));
    const std::vector<int32_t> own = encoder.encode_plain(before + text, stretch->at_text_start);
    whole.insert(whole.end(), own.begin(), own.end());
  }
  return parted(wholes, prompt.size());
}

}  // namespace cotune
