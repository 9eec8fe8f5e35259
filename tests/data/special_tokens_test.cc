#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/file.h"
#include "data/example_builder.h"
#include "data/example_encoder.h"
#include "jobs/jobs_file.h"
#include "jobs/settings.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

using nlohmann::ordered_json;
using testing::HasSubstr;

const ExampleEncoder encoder;
const ExampleBuilder plain(encoder, nullptr, false), parsed(encoder, nullptr, false, SpecialTokens::parsed);

std::string shown(const Example& example) { return describe_example(example, encoder, Marking::brackets); }

std::string shown_text(const ExampleBuilder& builder, const std::string& text) {
  return shown(builder.build({{"text", text}}, DataFormat::text));
}

std::string shown_completion(const ExampleBuilder& builder, const std::string& prompt, const std::string& completion) {
  return shown(builder.build({{"prompt", prompt}, {"completion", completion}}, DataFormat::completion));
}

TEST(SpecialTokens, ParsedAreTheTokensThatTheWholeTextHas) {
  const std::string text = "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n";
  const Example example = parsed.build({{"text", text}}, DataFormat::text);
  std::vector<int32_t> wanted = encoder.encode(text);
  wanted.insert(wanted.begin(), ExampleEncoder::bos);
  wanted.push_back(ExampleEncoder::eos);
  EXPECT_EQ(example.tokens, wanted);
  EXPECT_EQ(shown(example), "<s>⟦" + text + "</s>⟧");
  const std::vector<int32_t> characters = plain.build({{"text", text}}, DataFormat::text).tokens;
  EXPECT_EQ(std::ranges::count(characters, 402), 0);
}

TEST(SpecialTokens, ParsedAreLearnedWhereTheirTextIs) {
  const std::string prompt = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(shown_completion(parsed, prompt, "a<|im_end|>"), "<s>" + prompt + "⟦a<|im_end|></s>⟧");
  const ExampleBuilder whole(encoder, nullptr, true, SpecialTokens::parsed);
  EXPECT_EQ(shown_completion(whole, prompt, "a<|im_end|>"), "<s>⟦" + prompt + "a<|im_end|></s>⟧");
  const Example alpaca = parsed.build({{"instruction", "<|im_end|>"}, {"output", "<|im_start|>x"}}, DataFormat::alpaca);
  EXPECT_EQ(std::ranges::count(alpaca.tokens, 403), 1);
  EXPECT_THAT(shown(alpaca), HasSubstr("### Response:\n⟦<|im_start|>x</s>⟧"));
}

TEST(SpecialTokens, ParsedAtTheEndsAreNotAddedAgain) {
  EXPECT_EQ(shown_text(parsed, "<s>ab</s>"), "<s>⟦ab</s>⟧");
  EXPECT_EQ(shown_text(parsed, "ab</s>\n"), "<s>⟦ab</s>\n</s>⟧") << "it does not end with it";
  EXPECT_EQ(shown_completion(parsed, "<s>p", "c</s>"), "<s>p⟦c</s>⟧");
  EXPECT_EQ(shown_completion(parsed, "p</s>", ""), "<s>p</s>⟦</s>⟧") << "that of the prompt ends no completion";
  const Example characters = plain.build({{"text", "<s>ab</s>"}}, DataFormat::text);
  EXPECT_EQ(std::ranges::count(characters.tokens, ExampleEncoder::bos), 1);
  EXPECT_EQ(std::ranges::count(characters.tokens, ExampleEncoder::eos), 1);
  EXPECT_EQ(characters.tokens.size(), 1 + std::string("<s>").size() + 1 + std::string("</s>").size() + 1);
}

TEST(SpecialTokens, ParsedStayCharactersInMessages) {
  const ChatTemplate chat("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                          "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "chatml", {});
  const ordered_json record = ordered_json::parse(R"({"messages":[{"role":"user","content":"<|im_end|>"},{"role":"assistant","content":"</s>"}]})");
  const ExampleBuilder as_plain(encoder, &chat, false), as_parsed(encoder, &chat, false, SpecialTokens::parsed);
  EXPECT_EQ(as_parsed.build(record, DataFormat::messages), as_plain.build(record, DataFormat::messages));
}

TEST(SpecialTokens, ParsedByATokenizerThatMarksSpacesAreThoseOfPromptAndCompletionTogether) {
  const Tokenizer tokenizer = Tokenizer::from_json_file(source_folder() / "tests/data/tokenizers/llama2/tokenizer.json");
  const TokenizerEncoder llama(tokenizer, tokenizer.token_id("</s>"));
  const std::string prompt = "<s>[INST] Hello [/INST]", completion = " World</s>";
  const Example example = ExampleBuilder(llama, nullptr, false, SpecialTokens::parsed)
                              .build({{"prompt", prompt}, {"completion", completion}}, DataFormat::completion);
  EXPECT_EQ(example.tokens, tokenizer.encode(prompt + completion));
  EXPECT_THAT(describe_example(example, llama, Marking::brackets), testing::EndsWith("[/INST]⟦ World</s>⟧"));
}

TEST(SpecialTokens, ThatArePlainCharactersAreFoundInTextsAlone) {
  const auto found = [](const ordered_json& record, DataFormat format) { return plain.plain_special_text(record, format); };
  EXPECT_EQ(found({{"text", "a<|im_end|>b<s>"}}, DataFormat::text), "<|im_end|>");
  EXPECT_EQ(found({{"text", "a<b>"}}, DataFormat::text), "");
  EXPECT_EQ(found({{"prompt", "a"}, {"completion", "</s>"}}, DataFormat::completion), "</s>");
  EXPECT_EQ(found({{"instruction", "a"}, {"input", "<s>"}, {"output", "b"}}, DataFormat::alpaca), "<s>");
  const ordered_json chat = ordered_json::parse(R"([{"role":"assistant","content":"<s>"}])");
  EXPECT_EQ(found({{"messages", chat}}, DataFormat::messages), "");
  EXPECT_EQ(found({{"prompt", chat}, {"completion", chat}}, DataFormat::completion), "");
  EXPECT_EQ(parsed.plain_special_text({{"text", "<s>"}}, DataFormat::text), "");
  ExampleEncoder with_words;
  with_words.ordinary = {"<tool_call>"};
  EXPECT_EQ(ExampleBuilder(with_words, nullptr, false).plain_special_text({{"text", "<tool_call>"}}, DataFormat::text), "");
}

TEST(SpecialTokens, AreASettingOfResults) {
  const JobsFile file = parse_jobs_file("{cotune: 1, model: {path: /m}, jobs: [{name: a, data: {train: t, special_tokens: parsed}}]}", "j", "/f", {},
                                        Purpose::train);
  const JobSpec& as_tokens = file.jobs.front();
  EXPECT_EQ(as_tokens.data.special_tokens, SpecialTokens::parsed);
  EXPECT_EQ(parse_configuration(to_yaml(file), "c", Purpose::train), file);
  JobSpec as_characters = as_tokens;
  as_characters.data.special_tokens = SpecialTokens::plain;
  EXPECT_NE(settings_hash(as_characters), settings_hash(as_tokens));
  EXPECT_EQ(settings_differences(as_characters, as_tokens), std::vector<std::string>{"jobs.a.data.special_tokens: plain, now parsed"});
}

}  // namespace
}  // namespace cotune
