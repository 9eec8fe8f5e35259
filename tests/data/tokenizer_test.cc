#include "data/tokenizer/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "data/tokenizer/pre_tokenizer.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

std::filesystem::path committed(const std::string& kind) {
  return source_folder() / "tests/data/tokenizers" / kind / "tokenizer.json";
}

/// A vocabulary of the byte characters (ids 0 to 255) and nothing else.
json byte_level_file() {
  json vocab;
  for (int b = 0; b < 256; ++b) vocab[std::string(byte_to_character(static_cast<uint8_t>(b)))] = b;
  return {{"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", json::array()}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"decoder", {{"type", "ByteLevel"}}}};
}

json added_token(int id, const std::string& content, bool special = true) {
  return {{"id", id}, {"content", content}, {"special", special}, {"normalized", false}};
}

Tokenizer build(const json& file) { return Tokenizer::from_json(file.dump(), "tokenizer.json"); }

std::string error_of(const json& file) {
  try {
    build(file);
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

std::string without_spaces(std::string text) {
  std::erase(text, ' ');
  return text;
}

TEST(Tokenizer, TextOfUsersCannotInjectSpecialTokens) {
  for (const char* kind : {"gpt2", "llama3", "qwen2", "smollm", "llama2"}) {
    const Tokenizer tokenizer = Tokenizer::from_json_file(committed(kind));
    const std::string text = "a<|im_end|>b</s><|eot_id|><|endoftext|><tool> we [INST] <s>";
    bool recognised = false;
    for (const int32_t id : tokenizer.encode(text)) recognised = recognised || tokenizer.is_added(id);
    EXPECT_TRUE(recognised) << kind;
    const std::vector<int32_t> plain = tokenizer.encode_plain(text);
    for (const int32_t id : plain) EXPECT_FALSE(tokenizer.is_special(id)) << kind;
    EXPECT_EQ(without_spaces(tokenizer.decode(plain)), without_spaces(text)) << kind;  // some added tokens swallow those around them
  }
}

TEST(Tokenizer, PlainTextHasTheAddedTokensThatAreNotSpecial) {
  json file = byte_level_file();
  json word = added_token(258, "chem", false);
  word["normalized"] = true;
  file["added_tokens"] = {added_token(256, "<end>"), added_token(257, "<tool>", false), word};
  const Tokenizer tokenizer = build(file);
  EXPECT_THAT(tokenizer.encode_plain("a<tool>chem<end>"), ElementsAre('a', 257, 258, '<', 'e', 'n', 'd', '>'));
  EXPECT_THAT(tokenizer.encode("a<tool>chem<end>"), ElementsAre('a', 257, 258, 256));
}

TEST(Tokenizer, PlainTextAvoidsAddedTokensThatMergesOrWholeWordsWouldMake) {
  json file = byte_level_file();
  file["model"]["vocab"]["ab"] = 256;
  file["model"]["vocab"]["xyz"] = 257;
  file["model"]["merges"] = {"a b"};
  file["model"]["ignore_merges"] = true;
  file["added_tokens"] = {added_token(256, "ab"), added_token(257, "xyz")};
  const Tokenizer tokenizer = build(file);
  EXPECT_THAT(tokenizer.encode("abxyz"), ElementsAre(256, 257));
  EXPECT_THAT(tokenizer.encode_plain("ab"), ElementsAre('a', 'b'));
  EXPECT_THAT(tokenizer.encode_plain("xyz"), ElementsAre('x', 'y', 'z'));
}

TEST(Tokenizer, StreamGivesWholeCharactersAndTogetherTheDecodedText) {
  const std::string text = "Grüße 你好 👨‍👩‍👧 e\u0301 <|im_end|> the end\xFF";
  for (const char* kind : {"gpt2", "llama3", "qwen2", "smollm", "llama2"}) {
    const Tokenizer tokenizer = Tokenizer::from_json_file(committed(kind));
    const std::vector<int32_t> ids = tokenizer.encode(text, true);
    Tokenizer::Stream stream = tokenizer.stream();
    std::string joined;
    for (const int32_t id : ids) {
      const std::string piece = stream.add(id);
      EXPECT_NO_THROW(json(piece).dump()) << "not UTF-8 on its own";
      joined += piece;
    }
    joined += stream.finish();
    EXPECT_EQ(joined, tokenizer.decode(ids)) << kind;
  }
}

TEST(Tokenizer, StreamTurnsBytesWithoutACharacterIntoReplacementCharacters) {
  const Tokenizer tokenizer = build(byte_level_file());
  Tokenizer::Stream stream = tokenizer.stream();
  EXPECT_EQ(stream.add(0xE4), "");
  EXPECT_EQ(stream.add(0xBD), "");
  EXPECT_EQ(stream.add(0xA0), "你");
  EXPECT_EQ(stream.add(0xF0), "");
  EXPECT_EQ(stream.add('a'), "\uFFFDa");
  EXPECT_EQ(stream.add(0xC3), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(Tokenizer, StreamOutlivesTheTokenizer) {
  auto tokenizer = std::make_unique<Tokenizer>(build(byte_level_file()));
  Tokenizer::Stream stream = tokenizer->stream();
  tokenizer.reset();
  EXPECT_EQ(stream.add('x'), "x");
}

TEST(Tokenizer, AddedTokensStripAndMatchWholeWordsAsAsked) {
  json file = byte_level_file();
  json strip = added_token(256, "<a>"), word = added_token(257, "we", false);
  strip["lstrip"] = strip["rstrip"] = true;
  word["single_word"] = true;
  file["added_tokens"] = {strip, word, added_token(258, "<a>b")};
  const Tokenizer tokenizer = build(file);
  EXPECT_THAT(tokenizer.encode("x \n<a>\t y"), ElementsAre('x', 256, 'y'));
  EXPECT_THAT(tokenizer.encode("we"), ElementsAre(257));
  EXPECT_THAT(tokenizer.encode("owe"), ElementsAre('o', 'w', 'e'));
  EXPECT_THAT(tokenizer.encode("<a>b"), ElementsAre(258)) << "the longest wins";
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{'x', 258, 257}, true), "xwe") << "only special tokens are left out";
}

TEST(Tokenizer, KnowsItsTokens) {
  json file = byte_level_file();
  file["added_tokens"] = {added_token(256, "<s>"), added_token(257, "<tool>", false)};
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                                        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                                        {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}}},
                            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}};
  const Tokenizer tokenizer = build(file);
  EXPECT_EQ(tokenizer.vocabulary_size(), 258);
  EXPECT_EQ(tokenizer.token_id("<s>"), 256);
  EXPECT_EQ(tokenizer.token_id("nothing"), std::nullopt);
  EXPECT_EQ(tokenizer.token(257), "<tool>");
  EXPECT_TRUE(tokenizer.is_special(256));
  EXPECT_FALSE(tokenizer.is_special(257));
  EXPECT_TRUE(tokenizer.is_added(257));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_special(1000));
  EXPECT_THAT(tokenizer.encode("a", true), ElementsAre(256, 'a', 256));
  EXPECT_THAT(tokenizer.prefix_ids(), ElementsAre(256));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{-1, 'a', 9999}), "a");
}

TEST(Tokenizer, OneMegabyteOfOneCharacterIsFast) {
  const auto start = std::chrono::steady_clock::now();
  for (const char* kind : {"gpt2", "llama3", "qwen2", "smollm", "llama2"}) {
    const Tokenizer tokenizer = Tokenizer::from_json_file(committed(kind));
    for (const std::string& text : {std::string(1 << 20, 'a'), std::string(1 << 20, ' ') + "x",
                                    std::string(1 << 20, '\n') + "x", std::string(1 << 20, '1')}) {
      EXPECT_EQ(tokenizer.decode(tokenizer.encode(text)), text) << kind << " " << text[0];
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  EXPECT_LT(seconds.count(), 60);
}

TEST(Tokenizer, ManyThreadsGetTheSameIds) {
  const Tokenizer tokenizer = Tokenizer::from_json_file(committed("llama3"));
  const std::string text = read_file(source_folder() / "tests/data/tokenizers/texts.bin");
  const std::vector<int32_t> expected = Tokenizer::from_json_file(committed("llama3")).encode(text);
  std::vector<std::thread> threads;
  std::vector<std::vector<int32_t>> got(4);
  for (auto& ids : got) threads.emplace_back([&] { ids = tokenizer.encode(text); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& ids : got) EXPECT_EQ(ids, expected);
}

TEST(TokenizerJson, ErrorsNameTheFileAndThePlace) {
  json file = byte_level_file();
  file["model"]["merges"] = {"a b"};
  EXPECT_EQ(error_of(file), "tokenizer.json: model: merges[0]: no token 'ab' in the vocabulary");
  file["model"]["merges"] = {"ab"};
  EXPECT_EQ(error_of(file), "tokenizer.json: model.merges[0]: expected two tokens with one space between them, got 'ab'");
  file = byte_level_file();
  file["model"]["type"] = "Unigram";
  EXPECT_EQ(error_of(file), "tokenizer.json: model.type: model 'Unigram' is not supported; supported is BPE");
  file = byte_level_file();
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "Whitespace"}}}}};
  EXPECT_THAT(error_of(file),
              HasSubstr("tokenizer.json: pre_tokenizer.pretokenizers[0].type: pre_tokenizer 'Whitespace' is not supported"));
  file = byte_level_file();
  file["normalizer"] = {{"type", "Lowercase"}};
  EXPECT_THAT(error_of(file), HasSubstr("normalizer.type: normalizer 'Lowercase' is not supported"));
  file = byte_level_file();
  file.erase("model");
  EXPECT_EQ(error_of(file), "tokenizer.json: the whole file: 'model' is missing");
  file = byte_level_file();
  file["model"]["vocab"]["a"] = 98;
  EXPECT_THAT(error_of(file), HasSubstr("model.vocab: two tokens have the id 98"));
  file["model"]["vocab"]["a"] = 4'000'000'000;
  EXPECT_THAT(error_of(file), HasSubstr("the id of 'a' must be between 0 and"));
}

TEST(TokenizerJson, BrokenJsonIsReportedWithLineAndColumn) {
  try {
    Tokenizer::from_json("{\n  \"model\": }", "dir/tokenizer.json");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("dir/tokenizer.json:2: column"));
  }
  EXPECT_THROW(Tokenizer::from_json("", "x"), UserError);
  EXPECT_THROW(Tokenizer::from_json("[1]", "x"), UserError);
  EXPECT_THROW(Tokenizer::from_json(std::string(100'000, '['), "x"), UserError);
  EXPECT_THROW(Tokenizer::from_json_file("/no/such/tokenizer.json"), UserError);
}

TEST(TokenizerJson, RegularExpressionsThatExplodeGiveUpWithAUserError) {
  json file = byte_level_file();
  file["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(a+)+(a+)+(a+)+[bd]"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  const Tokenizer tokenizer = build(file);
  EXPECT_THROW(tokenizer.encode(std::string(5000, 'a') + "c"), UserError);
}

TEST(TokenizerJson, RulesThatMakeTextExplodeGiveUpWithAUserError) {
  json steps = json::array();
  for (int i = 0; i < 60; ++i) steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
  json file = byte_level_file();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
  EXPECT_THROW(build(file).encode("a"), UserError);
  json words = json::array();
  for (int i = 0; i < 60; ++i) words.push_back({{"type", "ByteLevel"}, {"add_prefix_space", true}});
  file = byte_level_file();
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", words}};
  EXPECT_THROW(build(file).encode("a"), UserError);
}

TEST(TokenizerJson, SeedsOfTheFuzzTargetAreAcceptedSoThatItReachesTheEncoder) {
  for (const char* name : {"byte_level.json", "sentencepiece.json"}) {
    const auto path = source_folder() / "tests/data/tokenizers/fuzz_seeds" / name;
    EXPECT_FALSE(Tokenizer::from_json_file(path).encode("hello we aaaa", true).empty()) << name;
  }
}

TEST(TokenizerJson, MergesMayBePairsOrStrings) {
  json file = byte_level_file();
  file["model"]["vocab"]["ab"] = 256;
  file["model"]["merges"] = {"a b"};
  EXPECT_THAT(build(file).encode("ab"), ElementsAre(256));
  file["model"]["merges"] = json::array({json::array({"a", "b"})});
  EXPECT_THAT(build(file).encode("ab"), ElementsAre(256));
}

GgufVocabulary gguf(const std::string& pre) {
  GgufVocabulary out;
  out.pre = pre;
  for (int b = 0; b < 256; ++b) out.tokens.emplace_back(byte_to_character(static_cast<uint8_t>(b)));
  out.token_types.assign(256, 1);
  for (const char* control : {"<|bos|>", "<|eos|>"}) {
    out.tokens.emplace_back(control);
    out.token_types.push_back(3);
  }
  out.tokens.emplace_back("12");
  out.token_types.push_back(1);
  out.merges = {"1 2"};
  out.bos = 256;
  out.eos = 257;
  return out;
}

TEST(TokenizerGguf, EveryFamilySplitsAsItsTokenizerJsonDoes) {
  EXPECT_THAT(Tokenizer::from_gguf(gguf("gpt-2"), "m.gguf").encode("12"), ElementsAre(258));
  EXPECT_THAT(Tokenizer::from_gguf(gguf("llama-bpe"), "m.gguf").encode("12"), ElementsAre(258));
  EXPECT_THAT(Tokenizer::from_gguf(gguf("qwen2"), "m.gguf").encode("12"), ElementsAre('1', '2'));
  EXPECT_THAT(Tokenizer::from_gguf(gguf("smollm"), "m.gguf").encode("12"), ElementsAre('1', '2'));
  EXPECT_EQ(Tokenizer::from_gguf(gguf("qwen2"), "m.gguf").encode("e\u0301").size(), 2u) << "NFC";
  EXPECT_EQ(Tokenizer::from_gguf(gguf("smollm"), "m.gguf").encode("e\u0301").size(), 3u);
}

TEST(TokenizerGguf, PutsBeginningAndEndAsTheFileOrTheFamilySays) {
  GgufVocabulary in = gguf("llama-bpe");
  EXPECT_THAT(Tokenizer::from_gguf(in, "m.gguf").encode("a", true), ElementsAre(256, 'a'));
  in.add_bos = false;
  in.add_eos = true;
  EXPECT_THAT(Tokenizer::from_gguf(in, "m.gguf").encode("a", true), ElementsAre('a', 257));
  EXPECT_THAT(Tokenizer::from_gguf(gguf("smollm"), "m.gguf").encode("a", true), ElementsAre('a'));
  EXPECT_TRUE(Tokenizer::from_gguf(in, "m.gguf").is_special(256));
}

TEST(TokenizerGguf, TakesTokensOfTheUndefinedTypeAsNormalOnes) {
  GgufVocabulary in = gguf("gpt-2");
  in.token_types.back() = 0;
  const Tokenizer tokenizer = Tokenizer::from_gguf(in, "m.gguf");
  EXPECT_THAT(tokenizer.encode("12"), ElementsAre(258));
  EXPECT_FALSE(tokenizer.is_special(258));
}

TEST(TokenizerGguf, GivesATokenizerJsonOfTheSameTokensAndSpecials) {
  const std::string text = "12 1234 it's e\u0301 Gr\u00FC\u00DFe\u4F60\u597D<|eos|> x\r\n\n  y <|bos|>\t12a";
  for (const std::string& pre : gguf_pre_tokenizers()) {
    for (const bool adds_eos : {false, true}) {
      GgufVocabulary in = gguf(pre);
      in.add_eos = adds_eos;
      in.token_types.back() = 4;  // user-defined
      const Tokenizer tokenizer = Tokenizer::from_gguf(in, "m.gguf"), written = build(json::parse(tokenizer.to_json()));
      EXPECT_EQ(written.encode(text, true), tokenizer.encode(text, true)) << pre;
      EXPECT_EQ(written.encode_plain(text), tokenizer.encode_plain(text)) << pre;
      EXPECT_EQ(written.decode(tokenizer.encode(text), true), tokenizer.decode(tokenizer.encode(text), true)) << pre;
      EXPECT_EQ(written.prefix_ids(), tokenizer.prefix_ids()) << pre;
      EXPECT_EQ(written.suffix_ids(), tokenizer.suffix_ids()) << pre;
      for (int32_t id = 0; id < tokenizer.vocabulary_size(); ++id) {
        EXPECT_EQ(written.token(id), tokenizer.token(id));
        EXPECT_EQ(written.is_special(id), tokenizer.is_special(id));
        EXPECT_EQ(written.is_added(id), tokenizer.is_added(id));
      }
    }
  }
}

TEST(TokenizerJson, OfEveryKindOfStepIsWrittenAsItWasRead) {
  json file = byte_level_file();
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", {{{"type", "NFC"}}, {{"type", "Prepend"}, {"prepend", "x"}},
                                         {{"type", "Replace"}, {"pattern", {{"String", "q"}}}, {"content", "k"}},
                                         {{"type", "Replace"}, {"pattern", {{"Regex", "[yz]+"}}}, {"content", "i"}}}}};
  json splits = json::array();
  for (const char* behavior : {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    splits.push_back({{"type", "Split"}, {"pattern", {{"Regex", "[0-9]"}}}, {"behavior", behavior}, {"invert", false}});
    splits.push_back({{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", true}});
  }
  splits.push_back({{"type", "Digits"}, {"individual_digits", false}});
  for (const char* scheme : {"always", "first", "never"}) {
    splits.push_back({{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", scheme}, {"split", false}});
  }
  splits.push_back({{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}, {"use_regex", true}});
  file["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", splits}};
  file["decoder"] = {{"type", "Sequence"},
                     {"decoders", {{{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "b"}},
                                   {{"type", "Metaspace"}, {"replacement", "_"}, {"prepend_scheme", "never"}, {"split", true}},
                                   {{"type", "ByteFallback"}}, {{"type", "Fuse"}},
                                   {{"type", "Strip"}, {"content", "\u00E9"}, {"start", 2}, {"stop", 0}}}}};
  file["model"]["unk_token"] = "a";
  file["model"]["fuse_unk"] = file["model"]["byte_fallback"] = file["model"]["ignore_merges"] = true;
  file["added_tokens"] = {added_token(256, "<one>"), added_token(257, "<two>", false)};
  file["added_tokens"][1]["normalized"] = file["added_tokens"][1]["lstrip"] = file["added_tokens"][1]["rstrip"] =
      file["added_tokens"][1]["single_word"] = true;
  file["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single", {{{"SpecialToken", {{"id", "<one>"}}}}, {{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "<two>"}}}}}},
                            {"special_tokens", {{"<one>", {{"ids", {256}}}}, {"<two>", {{"ids", {257}}}}}}};
  const json written = json::parse(build(file).to_json());
  for (const char* same : {"normalizer", "pre_tokenizer", "decoder"}) EXPECT_EQ(written[same], file[same]) << same;
  for (const char* same : {"vocab", "unk_token", "fuse_unk", "byte_fallback", "ignore_merges"}) EXPECT_EQ(written["model"][same], file["model"][same]);
  for (const size_t i : {0, 1}) {
    for (const auto& [field, value] : file["added_tokens"][i].items()) EXPECT_EQ(written["added_tokens"][i][field], value) << field;
  }
  EXPECT_EQ(build(written).prefix_ids(), std::vector<int32_t>{256});
  EXPECT_EQ(build(written).suffix_ids(), std::vector<int32_t>{257});
  EXPECT_TRUE(json::parse(build({{"model", file["model"]}}).to_json())["decoder"].is_null());
}

/// a, b, c, their pairs ab and bc, and what SentencePiece has besides.
GgufVocabulary scored(float ab, float bc) {
  GgufVocabulary out;
  out.model = "llama";
  out.tokens = {"<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc", "\u2581", "\u2581a"};
  out.token_types = {2, 3, 3, 1, 1, 1, 1, 1, 1, 1};
  out.scores = {0, 0, 0, -9, -9, -9, ab, bc, -9, -5};
  out.unk = 0, out.bos = 1, out.eos = 2;
  return out;
}

TEST(TokenizerGguf, OfSentencePieceMergesTheTokenOfTheHighestScoreFirst) {
  EXPECT_THAT(Tokenizer::from_gguf(scored(-1, -2), "m.gguf").encode_plain("bcabc"), ElementsAre(8, 7, 6, 5));
  EXPECT_THAT(Tokenizer::from_gguf(scored(-2, -1), "m.gguf").encode_plain("bcabc"), ElementsAre(8, 7, 3, 7));
}

TEST(TokenizerGguf, OfSentencePieceMarksSpacesAndHasABeginningUnlessTheFileSaysOtherwise) {
  GgufVocabulary in = scored(-1, -2);
  const Tokenizer tokenizer = Tokenizer::from_gguf(in, "m.gguf");
  EXPECT_TRUE(tokenizer.marks_spaces());
  EXPECT_THAT(tokenizer.encode("a a</s>c", true), ElementsAre(1, 9, 9, 2, 8, 5));
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{1, 9, 9, 2, 8, 5}), "<s> a a</s> c");
  EXPECT_EQ(tokenizer.decode(std::vector<int32_t>{9, 9}), "a a");
  EXPECT_TRUE(tokenizer.is_special(0));
  in.add_space_prefix = in.add_bos = false;
  const Tokenizer bare = Tokenizer::from_gguf(in, "m.gguf");
  EXPECT_THAT(bare.encode("ab", true), ElementsAre(6));
  EXPECT_EQ(bare.decode(std::vector<int32_t>{9}), " a");
  EXPECT_NE(bare.hash(), tokenizer.hash());
  in.scores[6] = -3;
  EXPECT_NE(Tokenizer::from_gguf(in, "m.gguf").hash(), bare.hash());
}

TEST(TokenizerGguf, OfSentencePieceWithMergesTakesThese) {
  GgufVocabulary in = scored(-1, -2);
  in.merges = {"b c"};
  EXPECT_THAT(Tokenizer::from_gguf(in, "m.gguf").encode_plain("abc"), ElementsAre(8, 3, 7));
}

TEST(TokenizerGguf, ErrorsNameTheKey) {
  const auto error = [](const GgufVocabulary& in) -> std::string {
    try {
      Tokenizer::from_gguf(in, "m.gguf");
    } catch (const UserError& e) {
      return e.what();
    }
    return "no error";
  };
  GgufVocabulary in = gguf("tekken");
  EXPECT_THAT(error(in), HasSubstr("m.gguf: tokenizer.ggml.pre: 'tekken' is not supported; supported are gpt-2,"));
  in = gguf("qwen2");
  in.model = "bert";
  EXPECT_THAT(error(in), HasSubstr("m.gguf: tokenizer.ggml.model: "));
  in = gguf("qwen2");
  in.merges = {"nospace"};
  EXPECT_THAT(error(in), HasSubstr("m.gguf: tokenizer.ggml.merges[0]: "));
  in = gguf("qwen2");
  in.token_types.pop_back();
  EXPECT_THAT(error(in), HasSubstr("tokenizer.ggml.token_type: 258 entries for 259 tokens"));
  in = gguf("qwen2");
  in.token_types[5] = 7;
  EXPECT_THAT(error(in), HasSubstr("m.gguf: tokenizer.ggml.token_type[5]: found 7; accepted: 0 to 6"));
  in = scored(-1, -2);
  in.scores.pop_back();
  EXPECT_THAT(error(in), HasSubstr("m.gguf: tokenizer.ggml.scores: 9 scores for 10 tokens"));
  in = scored(-1, std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(error(in), HasSubstr("m.gguf: tokenizer.ggml.scores[7]: must be a finite number"));
  in = scored(-1, -2);
  in.tokens[5] = std::string(513, 'c');
  EXPECT_THAT(error(in), HasSubstr("m.gguf: tokenizer.ggml.tokens[5]: has 513 bytes; without merges at most 512 are accepted"));
  in = gguf("llama-bpe");
  in.bos = 9999;
  EXPECT_THAT(error(in), HasSubstr("tokenizer.ggml.bos_token_id: must be between 0 and 258, got 9999"));
}

}  // namespace
}  // namespace cotune
