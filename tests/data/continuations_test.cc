#include "data/continuations.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "data/example_builder.h"
#include "data/example_encoder.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;

const std::vector<std::string> answer_texts = {"yes", "no", "maybe", "\u540d", "yes it is", "(x"};

/// Llama 2's tokenizer, which writes spaces as characters of its own.
class MarkedSpaces : public ::testing::Test {
 protected:
  const Tokenizer tokenizer = Tokenizer::from_json_file(source_folder() / "tests/data/tokenizers/llama2/tokenizer.json");
  const TokenizerEncoder encoder{tokenizer, tokenizer.token_id("</s>")};

  ChatTemplate chat_template(const std::string& name) const {
    return ChatTemplate(read_file(source_folder() / "tests/data/templates" / (name + ".jinja")), name,
                        {{"bos_token", "<s>"}, {"eos_token", "</s>"}});
  }
  static ordered_json question() { return ordered_json::array({{{"role", "user"}, {"content", "Is it so?"}}}); }
  static ordered_json answered(const std::string& answer) {
    ordered_json messages = question();
    messages.push_back({{"role", "assistant"}, {"content", answer}});
    return messages;
  }
  /// The tokens of the chat's text to the end of the answer.
  std::vector<int32_t> tokens_to_answer(const ChatTemplate& chat, const std::string& answer) const {
    const std::string text = chat.render(answered(answer), {}).bytes();
    return tokenizer.encode(text.substr(0, text.rfind(answer) + answer.size()));
  }
  static std::vector<int32_t> joined(const Continuations& found, size_t i) {
    std::vector<int32_t> tokens = found.prompt;
    tokens.insert(tokens.end(), found.continuations[i].begin(), found.continuations[i].end());
    return tokens;
  }
};

TEST_F(MarkedSpaces, OfContinuationsBehindAChatAreThoseOfTheWholeText) {
  for (const char* name : {"llama2", "zephyr", "chatml"}) {
    const ChatTemplate chat = chat_template(name);
    const Continuations found = continue_chat(chat, question(), answer_texts, encoder);
    ASSERT_EQ(found.continuations.size(), answer_texts.size());
    for (size_t i = 0; i < answer_texts.size(); ++i) {
      EXPECT_EQ(joined(found, i), tokens_to_answer(chat, answer_texts[i])) << name << ": " << answer_texts[i];
      EXPECT_FALSE(found.continuations[i].empty()) << name;
    }
  }
}

TEST_F(MarkedSpaces, OfContinuationsInPlaceOfAnAnswerAreThoseOfTheWholeText) {
  for (const char* name : {"llama2", "zephyr", "chatml"}) {
    const ChatTemplate chat = chat_template(name);
    for (const std::string& answer : answer_texts) {
      const Example own = ExampleBuilder(encoder, &chat, false).build({{"messages", answered(answer)}}, DataFormat::messages);
      const size_t begin = static_cast<size_t>(std::ranges::find(own.learned, 1) - own.learned.begin());
      const std::span<const int32_t> all(own.tokens);
      const Continuations found = continue_example(all.first(begin), all.subspan(begin), answer_texts, encoder);
      for (size_t i = 0; i < answer_texts.size(); ++i) {
        EXPECT_EQ(joined(found, i), tokens_to_answer(chat, answer_texts[i])) << name << ": " << answer << ", " << answer_texts[i];
        EXPECT_FALSE(found.continuations[i].empty()) << name;
      }
    }
  }
}

TEST_F(MarkedSpaces, OfContinuationsBehindAPromptWithoutASpaceHaveNone) {
  const auto example_of = [&](const char* answer) {
    return ExampleBuilder(encoder, nullptr, false).build({{"prompt", "0+1="}, {"completion", answer}}, DataFormat::completion);
  };
  const Example own = example_of("1"), other = example_of("2");
  const std::span<const int32_t> all(own.tokens);
  const Continuations found = continue_example(all.first(all.size() - 2), all.last(2), std::vector<std::string>{"1", "2"}, encoder);
  EXPECT_EQ(found.prompt, std::vector<int32_t>(own.tokens.begin(), own.tokens.end() - 2));
  EXPECT_EQ(found.continuations[0], std::vector<int32_t>{own.tokens[own.tokens.size() - 2]});
  EXPECT_EQ(found.continuations[1], std::vector<int32_t>{other.tokens[other.tokens.size() - 2]});
}

TEST(Continuations, AreEncodedByThemselvesWhereSpacesAreNoTokens) {
  const ExampleEncoder encoder;
  const std::vector<std::string> texts = {"b", "c"};
  const std::vector<int32_t> prompt = {'x', 'a'}, answer = {' ', 'c', ExampleEncoder::eos};
  const Continuations found = continue_example(prompt, answer, texts, encoder);
  EXPECT_EQ(found.prompt, prompt);
  EXPECT_EQ(found.continuations, (std::vector<std::vector<int32_t>>{{' ', 'b'}, {' ', 'c'}}));
  const ChatTemplate chat("{{ messages[0].content }}", "plain", {});
  const Continuations behind = continue_chat(chat, ordered_json::array({{{"role", "user"}, {"content", "xa"}}}), texts, encoder);
  EXPECT_EQ(behind.prompt, prompt);
  EXPECT_EQ(behind.continuations, (std::vector<std::vector<int32_t>>{{'b'}, {'c'}}));
}

}  // namespace
}  // namespace cotune
