#include "model/config/tokenizer_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/error_message.h"
#include "formats/gguf_builder.h"
#include "formats/temporary_folder.h"
#include "model/config/model_config.h"

namespace cotune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TokenizerFilesOfAFolder, CollectsTokensTemplateAndEndOfTurn) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json",
               R"({"added_tokens": [{"id": 7, "content": "<|im_end|>"}], "model": {"vocab": {"<s>": 1}}})");
  folder.write("tokenizer_config.json",
               R"({"bos_token": "<s>", "eos_token": {"content": "<|im_end|>"}, "pad_token": null,
    "add_bos_token": true, "chat_template": "{{ messages }}"})");
  folder.write("special_tokens_map.json", R"({"unk_token": "<unk>", "bos_token": "not this"})");
  folder.write("generation_config.json", R"({"eos_token_id": [2, 5]})");
  const TokenizerFiles files = find_tokenizer_files(folder.path(), {2});
  EXPECT_EQ(files.tokenizer_json, folder.path() / "tokenizer.json");
  EXPECT_EQ(files.bos_token, "<s>");
  EXPECT_EQ(files.eos_token, "<|im_end|>");
  EXPECT_EQ(files.pad_token, "");
  EXPECT_EQ(files.unk_token, "<unk>");
  EXPECT_EQ(files.add_bos_token, true);
  EXPECT_EQ(files.chat_template, "{{ messages }}");
  EXPECT_EQ(files.end_of_turn_ids, (std::vector<int32_t>{2, 5, 7}));
}

TEST(TokenizerFilesOfAFolder, PrefersTheTemplateFile) {
  const TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": "old"})");
  folder.write("chat_template.jinja", "new");
  EXPECT_EQ(find_tokenizer_files(folder.path(), {}).chat_template, "new");
}

TEST(TokenizerFilesOfAFolder, TakesTheDefaultOfSeveralTemplatesAndTheOneForTools) {
  const TemporaryFolder folder;
  folder.write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}, {"name": "rag", "template": "c"}]})");
  const TokenizerFiles files = find_tokenizer_files(folder.path(), {});
  EXPECT_EQ(files.chat_template, "b");
  EXPECT_EQ(files.tool_use_template, "a");
}

TEST(TokenizerFilesOfAFolder, MayHaveATemplateForToolsAlone) {
  const TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "a"}]})");
  const TokenizerFiles files = find_tokenizer_files(folder.path(), {});
  EXPECT_EQ(files.chat_template, "");
  EXPECT_EQ(files.tool_use_template, "a");
}

TEST(TokenizerFilesOfAFolder, TakesTemplateFilesBeforeEveryTemplateOfTheConfiguration) {
  const TemporaryFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "old tools"}, {"name": "default", "template": "old"}]})");
  const auto file = folder.write("chat_template.jinja", "new");
  EXPECT_EQ(find_tokenizer_files(folder.path(), {}).tool_use_template, "");
  std::filesystem::create_directory(folder.path() / "additional_chat_templates");
  folder.write("additional_chat_templates/rag.jinja", "new rag");
  folder.write("additional_chat_templates/tool_use.jinja", "new tools");
  const TokenizerFiles files = find_tokenizer_files(folder.path(), {});
  EXPECT_EQ(files.chat_template, "new");
  EXPECT_EQ(files.tool_use_template, "new tools");
  std::filesystem::remove(file);
  const TokenizerFiles without = find_tokenizer_files(folder.path(), {});
  EXPECT_EQ(without.chat_template, "") << "as in transformers, which then has one for chats with tools alone";
  EXPECT_EQ(without.tool_use_template, "new tools");
}

TEST(TokenizerFilesOfAFolder, FindsAnEndTokenOfTheVocabulary) {
  const TemporaryFolder folder;
  folder.write("tokenizer.json", R"({"model": {"vocab": {"</s>": 2}}})");
  folder.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_EQ(find_tokenizer_files(folder.path(), {}).end_of_turn_ids, std::vector<int32_t>{2});
}

TEST(TokenizerFilesOfAFolder, IsEmptyForAFolderWithout) {
  const TokenizerFiles files = find_tokenizer_files(TemporaryFolder().path(), {});
  EXPECT_FALSE(files.tokenizer_json || files.gguf);
  EXPECT_TRUE(files.end_of_turn_ids.empty());
}

TEST(TokenizerFilesOfAFolder, NamesFileAndFieldWhenMalformed) {
  const TemporaryFolder folder;
  const auto refusal = [&](const char* name, const char* text) {
    const auto path = folder.write(name, text);
    const std::string message = user_error_of([&] { find_tokenizer_files(folder.path(), {}); });
    std::filesystem::remove(path);
    return message;
  };
  EXPECT_THAT(refusal("tokenizer_config.json", "{"), HasSubstr("tokenizer_config.json:1: column 2: not JSON: unexpected end"));
  EXPECT_THAT(refusal("tokenizer_config.json", "[]"), HasSubstr("must be a JSON object"));
  EXPECT_THAT(refusal("tokenizer_config.json", R"({"eos_token": 3})"),
              HasSubstr("tokenizer_config.json: eos_token"));
  EXPECT_THAT(refusal("tokenizer_config.json", R"({"chat_template": 3})"), HasSubstr("chat_template"));
  EXPECT_THAT(refusal("generation_config.json", R"({"eos_token_id": "x"})"),
              HasSubstr("generation_config.json: eos_token_id"));
}

GgufBuilder vocabulary(const char* model = "gpt2") {
  GgufBuilder builder;
  builder.string("tokenizer.ggml.model", model).string("tokenizer.ggml.pre", "smollm");
  builder.array("tokenizer.ggml.tokens", 8, 3,
                GgufBuilder::text("<s>") + GgufBuilder::text("a") + GgufBuilder::text("<|im_end|>"));
  builder.array("tokenizer.ggml.merges", 8, 1, GgufBuilder::text("a a"));
  return builder;
}

TEST(TokenizerFilesOfGguf, ReadsTheVocabularyAndSpecialTokens) {
  const TemporaryFolder folder;
  GgufBuilder builder = vocabulary();
  builder.array("tokenizer.ggml.token_type", 5, 3,
                GgufBuilder::raw(3) + GgufBuilder::raw(1) + GgufBuilder::raw(3));
  builder.u32("tokenizer.ggml.bos_token_id", 0)
      .u32("tokenizer.ggml.eos_token_id", 2)
      .u32("tokenizer.ggml.eot_token_id", 1);
  builder.pair("tokenizer.ggml.add_bos_token", 7, std::string(1, '\0'))
      .string("tokenizer.chat_template", "{{ x }}")
      .string("tokenizer.chat_template.tool_use", "{{ tools }}");
  const TokenizerFiles files = tokenizer_files_of(GgufFile(folder.write("m.gguf", builder.bytes())));
  ASSERT_TRUE(files.gguf.has_value());
  EXPECT_EQ(files.gguf->pre, "smollm");
  EXPECT_EQ(files.gguf->tokens, (std::vector<std::string>{"<s>", "a", "<|im_end|>"}));
  EXPECT_EQ(files.gguf->token_types, (std::vector<int32_t>{3, 1, 3}));
  EXPECT_EQ(files.gguf->merges, std::vector<std::string>{"a a"});
  EXPECT_EQ(files.gguf->unk, -1);
  EXPECT_EQ(files.gguf->add_bos, false);
  EXPECT_EQ(files.eos_token, "<|im_end|>");
  EXPECT_EQ(files.chat_template, "{{ x }}");
  EXPECT_EQ(files.tool_use_template, "{{ tools }}");
  EXPECT_EQ(files.end_of_turn_ids, (std::vector<int32_t>{1, 2}));
}

TEST(TokenizerFilesOfGguf, ReadsScoresOfSentencePiece) {
  const TemporaryFolder folder;
  const auto read = [&](const GgufBuilder& builder) { return *tokenizer_files_of(GgufFile(folder.write("m.gguf", builder.bytes()))).gguf; };
  const std::string scores = GgufBuilder::raw(0.0f) + GgufBuilder::raw(-1.5f) + GgufBuilder::raw(-2.0f);
  const GgufVocabulary found = read(vocabulary("llama").array("tokenizer.ggml.scores", 6, 3, scores));
  EXPECT_EQ(found.model, "llama");
  EXPECT_EQ(found.scores, (std::vector<float>{0, -1.5, -2}));
  EXPECT_EQ(found.add_space_prefix, std::nullopt);
  EXPECT_THAT(read(vocabulary().array("tokenizer.ggml.scores", 6, 3, scores)).scores, ::testing::IsEmpty()) << "byte-level BPE has none";
  EXPECT_THAT(user_error_of([&] { read(vocabulary("llama").array("tokenizer.ggml.scores", 6, 1, GgufBuilder::raw(0.0f))); }),
              HasSubstr("tokenizer.ggml.scores: 1 scores for 3 tokens"));
}

TEST(TokenizerFilesOfGguf, AreWrittenAsAFolderHasThem) {
  const TemporaryFolder folder;
  GgufBuilder builder = vocabulary();
  builder.array("tokenizer.ggml.token_type", 5, 3, GgufBuilder::raw(3) + GgufBuilder::raw(1) + GgufBuilder::raw(3));
  builder.u32("tokenizer.ggml.bos_token_id", 0).u32("tokenizer.ggml.eos_token_id", 2).u32("tokenizer.ggml.eot_token_id", 1);
  builder.u32("tokenizer.ggml.padding_token_id", 2).u32("tokenizer.ggml.unknown_token_id", 0);
  builder.pair("tokenizer.ggml.add_bos_token", 7, std::string(1, '\1'));
  builder.string("tokenizer.chat_template", "{{ x }}\n").string("tokenizer.chat_template.tool_use", "{{ tools }}");
  TokenizerFiles source = tokenizer_files_of(GgufFile(folder.write("m.gguf", builder.bytes())));
  source.gguf->merges.clear();
  ModelConfig config;
  config.context_length = 2048;
  config.bos_token_id = 0;
  std::filesystem::create_directory(folder.path() / "additional_chat_templates");
  for (const auto& [name, text] : format_tokenizer_files(source, config, "m.gguf")) folder.write(name, text);

  const TokenizerFiles files = find_tokenizer_files(folder.path(), {});
  ASSERT_TRUE(files.tokenizer_json.has_value());
  EXPECT_EQ(files.bos_token, "<s>");
  EXPECT_EQ(files.eos_token, "<|im_end|>");
  EXPECT_EQ(files.pad_token, "<|im_end|>");
  EXPECT_EQ(files.unk_token, "<s>");
  EXPECT_EQ(files.add_bos_token, true);
  EXPECT_EQ(files.chat_template, source.chat_template);
  EXPECT_EQ(files.tool_use_template, source.tool_use_template);
  EXPECT_EQ(files.end_of_turn_ids, source.end_of_turn_ids);
  const Tokenizer tokenizer = Tokenizer::from_json_file(*files.tokenizer_json);
  EXPECT_EQ(tokenizer.encode("a<|im_end|>", true), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(nlohmann::json::parse(read_file(folder.path() / "tokenizer_config.json"))["model_max_length"], 2048);
}

TEST(TokenizerFilesOfGguf, AreWrittenWithATemplateForToolsAlone) {
  const TemporaryFolder folder;
  GgufBuilder builder = vocabulary();
  builder.string("tokenizer.chat_template.tool_use", "{{ tools }}");
  TokenizerFiles source = tokenizer_files_of(GgufFile(folder.write("m.gguf", builder.bytes())));
  source.gguf->merges.clear();
  const auto texts = format_tokenizer_files(source, {}, "m.gguf");
  EXPECT_EQ(texts.count("chat_template.jinja"), 0u);
  ASSERT_EQ(texts.count("additional_chat_templates/tool_use.jinja"), 1u);
  EXPECT_EQ(texts.at("additional_chat_templates/tool_use.jinja"), "{{ tools }}");
}

TEST(TokenizerFilesOfGguf, RefusesIdsOutsideTheVocabularyAndWrongCounts) {
  const TemporaryFolder folder;
  const auto refusal = [&](const GgufBuilder& builder) {
    const auto path = folder.write("m.gguf", builder.bytes());
    return user_error_of([&] { tokenizer_files_of(GgufFile(path)); });
  };
  EXPECT_THAT(refusal(vocabulary().u32("tokenizer.ggml.eos_token_id", 3)),
              AllOf(HasSubstr("m.gguf"), HasSubstr("eos_token_id: found 3")));
  EXPECT_THAT(refusal(vocabulary().array("tokenizer.ggml.token_type", 5, 1, GgufBuilder::raw(1))),
              HasSubstr("1 types for 3 tokens"));
  EXPECT_THAT(refusal(vocabulary().array("tokenizer.ggml.token_type", 5, 3,
                                         GgufBuilder::raw(1) + GgufBuilder::raw(9) + GgufBuilder::raw(1))),
              HasSubstr("m.gguf: tokenizer.ggml.token_type[1]: found 9; accepted: 0 to 6"));
}

TEST(TokenizerFilesOfGguf, ReadsTokensOfTheUndefinedType) {
  const TemporaryFolder folder;
  const std::string types = GgufBuilder::raw(0) + GgufBuilder::raw(0) + GgufBuilder::raw(3);
  TokenizerFiles files =
      tokenizer_files_of(GgufFile(folder.write("m.gguf", vocabulary().array("tokenizer.ggml.token_type", 5, 3, types).bytes())));
  EXPECT_EQ(files.gguf->token_types, (std::vector<int32_t>{0, 0, 3}));
  files.gguf->merges.clear();
  EXPECT_EQ(Tokenizer::from_gguf(*files.gguf, "m.gguf").encode("a"), std::vector<int32_t>{1});
}

}  // namespace
}  // namespace cotune
