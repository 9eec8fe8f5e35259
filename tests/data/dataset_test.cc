#include "data/dataset_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <new>
#include <set>
#include <sstream>
#include <stdexcept>

#include "base/error.h"
#include "data/example_builder.h"
#include "data/example_encoder.h"
#include "data/records/jsonl.h"
#include "data/records/record_error.h"
#include "data/records/sharegpt.h"

namespace cotune {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Reading {
  Dataset train{"f"}, eval{"f"};
  Diagnostics diagnostics;
  FileReport report;
  std::string text(int64_t index) const {
    if (train.empty()) return mistake(0);
    return describe_example(train.example(index), ExampleEncoder(), Marking::brackets);
  }
  std::string mistake(size_t index) const { return diagnostics.items().at(index).to_string(); }
};

Reading read(const std::string& text, const DataSpec& spec = {}, int64_t context_length = 0) {
  static const ChatTemplate chat(
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}", "chatml", {});
  Reading reading;
  std::istringstream stream(text);
  JsonlReader lines(stream);
  ExamplesInMemory sink(reading.train, reading.eval);
  reading.report = read_records(lines, "f", {spec, ExampleEncoder(), &chat, context_length}, true, sink, reading.diagnostics);
  return reading;
}

TEST(Dataset, MarksWhatEachFormatLearns) {
  EXPECT_EQ(read(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})").text(0),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦a<|im_end|>⟧\n");
  EXPECT_EQ(read(R"({"prompt":"Say: ","completion":"hi"})").text(0), "<s>Say: ⟦hi</s>⟧");
  EXPECT_EQ(read(R"({"text":"abc"})").text(0), "<s>⟦abc</s>⟧");
  const std::string alpaca = read(R"({"instruction":"Add","input":"1 1","output":"2"})").text(0);
  EXPECT_THAT(alpaca, HasSubstr("paired with an input"));
  EXPECT_THAT(alpaca, HasSubstr("### Instruction:\nAdd\n\n### Input:\n1 1\n\n### Response:\n⟦2</s>⟧"));
  EXPECT_THAT(read(R"({"instruction":"Add","input":"","output":"2"})").text(0),
              HasSubstr("completes the request.\n\n### Instruction:\nAdd\n\n### Response:\n⟦2</s>⟧"));
}

TEST(Dataset, JoinsTheTextPartsOfAMessage) {
  const std::string plain = read(R"({"messages":[{"role":"user","content":"q\nr"},{"role":"assistant","content":"ab"}]})").text(0);
  const std::string question = R"({"role":"user","content":[{"type":"text","text":"q\n"},{"type":"text","text":"r"}]},)";
  const std::string answer = R"({"role":"assistant","content":[{"type":"text","text":"ab"}]})";
  EXPECT_EQ(read(R"({"messages":[)" + question + answer + "]}").text(0), plain);
  EXPECT_EQ(read(R"({"conversations":[)" + question + answer + "]}").text(0), plain);
  EXPECT_EQ(read(R"({"messages":[)" + question + R"({"role":"assistant","content":[]}]})").text(0),
            "<|im_start|>user\nq\nr<|im_end|>\n<|im_start|>assistant\n⟦<|im_end|>⟧\n");
}

TEST(Dataset, NamesPartsOfMessagesThatAreNoTexts) {
  const auto mistake = [](const std::string& parts) {
    return read(R"({"messages":[{"role":"user","content":[{"type":"text","text":"q"},)" + parts + "]}]}").mistake(0);
  };
  EXPECT_EQ(mistake(R"({"type":"image_url","image_url":{"url":"x"}})"),
            "f:1: messages[0].content[1].type: expected \"text\", found \"image_url\": messages are texts alone");
  EXPECT_EQ(mistake(R"({"text":"x"})"), "f:1: messages[0].content[1].type: missing; expected a string");
  EXPECT_EQ(mistake(R"({"type":"text","text":3})"), "f:1: messages[0].content[1].text: expected a string, found the number 3");
  EXPECT_EQ(mistake(R"("x")"), "f:1: messages[0].content[1]: expected {\"type\": \"text\", \"text\": …}, found a string");
}

TEST(Dataset, LearnsTheCompletionAloneWherePromptAndCompletionAreMessages) {
  const std::string prompt = R"("prompt":[{"role":"user","content":"q"},{"role":"assistant","content":"a","weight":1},)"
                             R"({"role":"user","content":"r"}])";
  const std::string completion = R"("completion":[{"role":"assistant","content":"b"}])", record = "{" + prompt + "," + completion + "}";
  const Reading reading = read(record);
  EXPECT_EQ(reading.text(0), "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n<|im_start|>user\nr<|im_end|>\n"
                             "<|im_start|>assistant\n⟦b<|im_end|>⟧\n");
  EXPECT_EQ(reading.report.format, DataFormat::completion);
  EXPECT_EQ(reading.report.chats, 1);
  DataSpec spec;
  spec.train_on_prompt = true;
  const std::string messages = R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"},)"
                               R"({"role":"user","content":"r"},{"role":"assistant","content":"b"}]})";
  EXPECT_EQ(read(record, spec).text(0), read(messages, spec).text(0));
  EXPECT_EQ(read("{" + completion.substr(0, 12) + R"(:"x",)" + prompt + "}").mistake(0),
            "f:1: completion: expected a list of at least one message, found a string");
  EXPECT_EQ(read(R"({"prompt":"x",)" + completion + "}").mistake(0),
            "f:1: prompt: expected a list of at least one message, found a string");
  EXPECT_EQ(read("{" + prompt + R"(,"completion":[{"role":"assistant","content":3}]})").mistake(0),
            "f:1: completion[0].content: expected a string or a list of parts, found the number 3");
  EXPECT_EQ(read(record.substr(0, record.size() - 1) + R"(,"tools":[{"name":"f"}]})").report.without_tools, 1);
}

TEST(Dataset, TokenizesPromptAndCompletionApart) {
  EXPECT_THAT(read(R"({"prompt":"a","completion":"b"})").train.example(0).tokens,
              ElementsAre(ExampleEncoder::bos, 'a', 'b', ExampleEncoder::eos));
}

TEST(Dataset, DataNeverMakesSpecialTokens) {
  const Reading reading = read(R"({"prompt":"</s>","completion":"<|im_end|></s>"})");
  const std::vector<int32_t> tokens = reading.train.example(0).tokens;
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), ExampleEncoder::eos), 1);
  EXPECT_EQ(std::count(tokens.begin(), tokens.end(), 403), 0);
}

TEST(Dataset, LearnsThePromptToldTo) {
  DataSpec spec;
  spec.train_on_prompt = true;
  EXPECT_EQ(read(R"({"prompt":"p","completion":"c"})", spec).text(0), "<s>⟦pc</s>⟧");
}

TEST(Dataset, TruncatesAsAsked) {
  DataSpec spec;
  spec.max_length = 4;
  const std::string line = R"({"prompt":"12","completion":"34"})";
  EXPECT_EQ(read(line, spec).text(0), "<s>12⟦3⟧");
  EXPECT_EQ(read(line, spec).report.truncated, 1);
  spec.truncation = Truncation::left;
  EXPECT_EQ(read(line, spec).text(0), "2⟦34</s>⟧");
  spec.max_length = 2;
  EXPECT_EQ(read(line, spec).text(0), "4⟦</s>⟧");
  spec.truncation = Truncation::right;
  const Reading nothing_left = read(line, spec);
  EXPECT_EQ(nothing_left.report.dropped_unlearned, 1);
  EXPECT_EQ(nothing_left.mistake(0), "f: no example is left: 1 record is cut to the first 2 tokens (max_length), before anything that is learned; "
                                     "raise max_length, or `truncation: left` keeps the ends");
  EXPECT_EQ(read(line, {}, 2).mistake(0), "f: no example is left: 1 record is cut to the first 2 tokens (the model's context), before anything that "
                                          "is learned; `truncation: left` keeps the ends");
  spec.truncation = Truncation::drop;
  EXPECT_EQ(read(line, spec).report.dropped_long, 1);
  EXPECT_EQ(read(line + "\n" + line, spec).mistake(0),
            "f: no example is left: 2 records are longer than 2 tokens (max_length) and left out (truncation: drop); raise max_length, or "
            "`truncation: right` or `left` cuts them");
  spec.truncation = Truncation::error;
  const Reading refused = read(line, spec);
  EXPECT_THAT(refused.mistake(0), HasSubstr("f:1: 6 tokens, more than max_length 2"));
  EXPECT_EQ(refused.diagnostics.size(), 1u);
  EXPECT_EQ(read(line + "\n{\n" + line, spec).report.to_string(), "f: 3 records, 1 malformed, 2 too long");
  spec.max_length = 100;
  EXPECT_THAT(read(line, spec, 3).mistake(0), HasSubstr("more than max_length 3"));
}

TEST(Dataset, NamesTheLineAndFieldOfEveryMistake) {
  const Reading reading = read(
      "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\"}]}\n"
      "\n{\"messages\":[{\"role\":\"bot\",\"content\":\"q\"}]}\n{\"messages\":[{\"role\":\"user\",\"content\":7}]}\n{\"messages\":[]}\n"
      "{\"text\":\"x\"}\n[1]\n{\"messages\":[{\"role\":\"assistant\",\"content\":\"q\",\"weight\":0.5}]}\n{\"messages\": oops}\n");
  EXPECT_EQ(reading.train.size(), 1);
  EXPECT_EQ(reading.report.malformed, 7);
  EXPECT_EQ(reading.mistake(0), "f:3: messages[0].role: expected one of system, developer, user, assistant, tool, "
                                "tool_results, ipython; found \"bot\"");
  EXPECT_EQ(reading.mistake(1), "f:4: messages[0].content: expected a string or a list of parts, found the number 7");
  EXPECT_EQ(reading.mistake(2), "f:5: messages: expected a list of at least one message, found an empty one");
  EXPECT_EQ(reading.mistake(3), "f:6: expected the fields messages, as in line 1: a file has one format; found text");
  EXPECT_EQ(reading.mistake(4), "f:7: expected an object, found array");
  EXPECT_EQ(reading.mistake(5), "f:8: messages[0].weight: expected 0 or 1, found the number 0.5");
  EXPECT_THAT(reading.mistake(6), HasSubstr("f:9: column 14: not JSON"));
}

TEST(Dataset, ReportsTwentyMistakesAndCountsTheRest) {
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += std::string(static_cast<size_t>(i), ' ') + "{\n";
  const Reading reading = read(lines);
  EXPECT_EQ(reading.diagnostics.items().size(), 21u);
  EXPECT_EQ(reading.mistake(20), "f:50: and 30 more such lines, this is the last");
}

TEST(Dataset, TellsAListOfRecordsFromLines) {
  const Reading reading = read("[\n {\"text\": \"a\"},\n {\"text\": \"b\"}\n]\n");
  ASSERT_EQ(reading.diagnostics.items().size(), 1u);
  EXPECT_EQ(reading.mistake(0), "f:1: expected an object on each line (JSONL), found a list; `jq -c '.[]'` makes lines of one");
  EXPECT_THAT(read("text,label\n").mistake(0), HasSubstr("f:1: column 2: not JSON: invalid literal"));
}

TEST(Dataset, ReportsThreeMistakesWithOneMessageAndCountsTheRest) {
  std::string lines;
  for (int i = 0; i < 50; ++i) lines += i == 30 ? "{\"prompt\":\"a\"}\n" : "{\n";
  const Reading reading = read(lines);
  ASSERT_EQ(reading.diagnostics.items().size(), 5u);
  EXPECT_THAT(reading.mistake(3), HasSubstr("f:31: expected the fields"));
  EXPECT_EQ(reading.mistake(4), "f:50: and 46 more such lines, this is the last");
}

TEST(Dataset, RefusesTokensAndLabelsThatAreNoIdsHoweverLarge) {
  EXPECT_THAT(read(R"({"input_ids":[3,4],"labels":[18446744073709551516,4]})").mistake(0),
              HasSubstr("labels[0]: expected a token id or -100, found 18446744073709551516"));
  EXPECT_THAT(read(R"({"input_ids":[3,9223372036854775808],"labels":[3,4]})").mistake(0),
              HasSubstr("input_ids[1]: expected a token id, found 9223372036854775808"));
  EXPECT_THAT(read(R"({"input_ids":[-1],"labels":[-100]})").mistake(0), HasSubstr("input_ids[0]: expected a token id, found -1"));
}

TEST(Dataset, LeavesOutWhatTheAttentionMaskLeavesOut) {
  const std::string bare = R"({"input_ids":[5,6,7,8],"labels":[-100,6,7,8]})";
  const Example wanted = read(bare).train.example(0);
  for (const char* padded : {R"({"input_ids":[2,2,2,5,6,7,8],"labels":[-100,-100,-100,-100,6,7,8],"attention_mask":[0,0,0,1,1,1,1]})",
                             R"({"input_ids":[5,6,7,8,2,2],"labels":[-100,6,7,8,-100,-100],"attention_mask":[1,1,1,1,0,0]})",
                             R"({"input_ids":[2,5,6,7,8,2],"labels":[-100,-100,6,7,8,0],"attention_mask":[0,1,1,1,1,0]})"}) {
    const Reading reading = read(padded);
    ASSERT_TRUE(reading.diagnostics.empty()) << reading.mistake(0);
    EXPECT_EQ(reading.train.example(0), wanted) << padded;
    EXPECT_EQ(reading.report.to_string(), "f: 1 record, 1 without their padding");
    EXPECT_EQ(ExampleBuilder::content_key(nlohmann::ordered_json::parse(padded), DataFormat::tokens),
              ExampleBuilder::content_key(nlohmann::ordered_json::parse(bare), DataFormat::tokens));
  }
  for (const char* mask : {"[1,1,1,1]", "null"}) {
    const Reading reading = read(bare.substr(0, bare.size() - 1) + R"(,"attention_mask":)" + mask + "}");
    EXPECT_EQ(reading.train.example(0), wanted) << mask;
    EXPECT_EQ(reading.report.padded, 0);
  }
}

TEST(Dataset, NamesWhatIsWrongWithAnAttentionMask) {
  const auto mistake = [](const std::string& mask) {
    return read(R"({"input_ids":[5,6,7],"labels":[5,6,7],"attention_mask":)" + mask + "}").mistake(0);
  };
  EXPECT_EQ(mistake("1"), "f:1: attention_mask: expected a list of 0 and 1, found the number 1");
  EXPECT_EQ(mistake("[1,1]"), "f:1: attention_mask: expected as many as input_ids (3), found 2");
  EXPECT_EQ(mistake("[1,2,1]"), "f:1: attention_mask[1]: expected 0 or 1, found 2");
  EXPECT_EQ(mistake("[1,true,1]"), "f:1: attention_mask[1]: expected 0 or 1, found true");
  EXPECT_EQ(mistake("[1,0,1]"), "f:1: attention_mask[1]: expected 1, found 0 between two 1: padding stands at the ends");
  EXPECT_EQ(mistake("[0,0,0]"), "f:1: attention_mask: expected at least one 1, found 0 alone");
  Diagnostics diagnostics;
  const std::string path = testing::TempDir() + "cotune_attention_mask_test.jsonl";
  std::ofstream(path) << R"({"input_ids":[5],"labels":[5],"attention_mask":[2]})" << "\n";
  DataSpec spec;
  spec.train = {{path}};
  check_records(spec, diagnostics);
  std::remove(path.c_str());
  ASSERT_EQ(diagnostics.size(), 1u) << "it is found without a model";
}

TEST(Dataset, TellsOfTextsOfSpecialTokensThatArePlainCharacters) {
  const std::string lines = "{\"text\":\"a\"}\n{\"text\":\"<|im_start|>b<|im_end|>\"}\n{\"text\":\"c<|im_end|>\"}\n";
  EXPECT_THAT(read(lines).report.warnings(),
              ElementsAre("f: 2 of 3 records hold texts of special tokens, such as `<|im_start|>`, which are plain characters here: "
                          "`data.special_tokens: parsed` (evaluate: `--special-tokens parsed`) reads them as tokens"));
  DataSpec spec;
  spec.special_tokens = SpecialTokens::parsed;
  const Reading parsed = read(lines, spec);
  EXPECT_THAT(parsed.report.warnings(), IsEmpty());
  EXPECT_EQ(parsed.train.length(1), 5);
  EXPECT_THAT(read(R"({"messages":[{"role":"user","content":"<|im_end|>"},{"role":"assistant","content":"a"}]})").report.warnings(), IsEmpty());
}

TEST(Dataset, LearnsMessagesAsTheirTrainOrTrainingSays) {
  const auto chat = [](const std::string& first) {
    return R"({"messages":[{"role":"assistant","content":"b")" + first + R"(},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})";
  };
  const auto turns = [](const std::string& first) {
    return R"({"conversations":[{"from":"gpt","value":"b")" + first + R"(},{"from":"human","value":"q"},{"from":"gpt","value":"a"}]})";
  };
  const std::string learned = read(chat("")).text(0), unlearned = read(chat(R"(,"weight":0)")).text(0);
  EXPECT_NE(learned, unlearned);
  for (const auto& in : std::vector<std::function<std::string(const std::string&)>>{chat, turns}) {
    for (const std::string key : {"train", "training"}) {
      EXPECT_EQ(read(in(",\"" + key + "\":false")).text(0), unlearned);
      EXPECT_EQ(read(in(",\"" + key + "\":true")).text(0), learned);
      EXPECT_EQ(read(in(",\"" + key + "\":null")).text(0), learned);
      EXPECT_EQ(read(in(",\"weight\":0,\"" + key + "\":false")).text(0), unlearned);
    }
  }
  EXPECT_EQ(read(chat(R"(,"weight":1,"train":false)")).mistake(0), "f:1: messages[0].train: expected true beside weight 1, found false");
  EXPECT_EQ(read(chat(R"(,"train":false,"training":true)")).mistake(0),
            "f:1: messages[0].training: expected false beside train false, found true");
  EXPECT_EQ(read(turns(R"(,"training":"no")")).mistake(0), "f:1: conversations[0].training: expected true or false, found a string");
  EXPECT_EQ(read(turns(R"(,"weight":2)")).mistake(0), "f:1: conversations[0].weight: expected 0 or 1, found the number 2");
}

TEST(Dataset, RefusesRecordsWithoutKnownFieldsAndDeepNesting) {
  EXPECT_THAT(read("{\"question\":1}").mistake(0), HasSubstr("or input_ids and labels; found question"));
  const std::string found = read(R"({"id":1,"question":"a","answer":"b"})").mistake(0);
  EXPECT_THAT(found, HasSubstr("; found id, question, answer; question and answer are accepted under the names prompt and completion"));
  EXPECT_THAT(found, HasSubstr(R"({"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]})"));
  EXPECT_THAT(read(R"({"input":"a","output":"b"})").mistake(0),
              HasSubstr("; input and output are accepted under the names prompt and completion"));
  EXPECT_THAT(read(R"({"output":"b"})").mistake(0), testing::EndsWith("; found output"));
  EXPECT_THAT(read("{\"text\":" + std::string(5000, '[') + "}").mistake(0), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(read("").mistake(0), HasSubstr("holds no examples"));
}

TEST(Dataset, RefusesObjectsOfMoreThanTenThousandMembers) {
  std::string line = R"({"text":"a")";
  for (int i = 1; i < 10'000; ++i) line += fmt::format(",\"k{}\":0", i);
  EXPECT_EQ(read(line + "}").train.size(), 1);
  const std::string longer = line + ",\"last\":0}";
  const std::string complaint = "found an object of more than 10000 members; accepted: at most 10000";
  EXPECT_EQ(read(longer).mistake(0), fmt::format("f:1: column {}: {}", longer.rfind(':') + 1, complaint));
  const std::string message = R"({"messages":[{"role":"assistant","content":"a","x":)" + line + "}";
  EXPECT_EQ(read(message + "}]}").train.size(), 1) << "each object has its own";
  EXPECT_THAT(read(R"({"text":"a:b:c","x":[)" + longer + "]}").mistake(0), testing::EndsWith(complaint));
  EXPECT_THAT(read("x" + std::string(20'000, ':')).mistake(0), HasSubstr("f:1: column 1: not JSON"));
}

/// Throws at one text, as a bug of ours would.
class ThrowingEncoder : public ExampleEncoder {
 public:
  std::vector<int32_t> encode_plain(std::string_view text, bool at_text_start = true) const override {
    if (text == "b") throw std::length_error("vector");
    return ExampleEncoder::encode_plain(text, at_text_start);
  }
};

TEST(Dataset, NamesTheLineOfARecordThatEndsInAnException) {
  Reading reading;
  std::istringstream stream("{\"text\":\"a\"}\n{\"text\":\"b\"}\n{\"text\":\"c\"}\n");
  JsonlReader lines(stream);
  ExamplesInMemory sink(reading.train, reading.eval);
  read_records(lines, "f", {DataSpec(), ThrowingEncoder()}, true, sink, reading.diagnostics);
  EXPECT_EQ(reading.train.size(), 2);
  ASSERT_EQ(reading.diagnostics.size(), 1u);
  EXPECT_EQ(reading.mistake(0), "f:2: bug in cotune: this record ends in an exception (vector)");
  EXPECT_EQ(complaint_of(std::bad_alloc()), "takes more memory than there is");
  EXPECT_EQ(complaint_of(UserError("is wrong")), "is wrong");
}

TEST(Dataset, RepairsInvalidUtf8AndReadsWindowsLines) {
  const Reading reading = read("\xEF\xBB\xBF{\"text\":\"a\xFFz\"}\r\n{\"text\":\"q\"}");
  EXPECT_EQ(reading.train.size(), 2);
  EXPECT_EQ(reading.text(0), "<s>⟦a\xEF\xBF\xBDz</s>⟧");
  EXPECT_EQ(reading.report.repaired, 1);
  EXPECT_EQ(reading.train.line(1), 2);
}

TEST(Dataset, HalvesOfSurrogatePairsBecomeReplacementCharactersAndAreCounted) {
  const Reading reading = read(R"({"text":"a\ud800z\uDc00"}
{"text":"\ud83d\ud83d\ude00 \\ud800 \ud83d\n"}
{"text":"\ud83d\ude00"}
{"text":"\ud83d\u00e9"})");
  EXPECT_EQ(reading.text(0), "<s>⟦a\xEF\xBF\xBDz\xEF\xBF\xBD</s>⟧");
  EXPECT_EQ(reading.text(1), "<s>⟦\xEF\xBF\xBD\U0001F600 \\ud800 \xEF\xBF\xBD\n</s>⟧");
  EXPECT_EQ(reading.text(2), "<s>⟦\U0001F600</s>⟧");
  EXPECT_EQ(reading.text(3), "<s>⟦\xEF\xBF\xBD\u00e9</s>⟧");
  EXPECT_EQ(reading.report.repaired, 3);
  EXPECT_THAT(read(R"({"text":"\ud8"})").mistake(0), HasSubstr("not JSON"));
}

TEST(Dataset, ExampleWithoutALearnedTokenIsDroppedAndCounted) {
  const Reading reading = read("{\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]}\n"
                               "{\"messages\":[{\"role\":\"assistant\",\"content\":\"q\"}]}");
  EXPECT_EQ(reading.report.dropped_unlearned, 1);
  EXPECT_EQ(reading.train.size(), 1);
}

TEST(Dataset, SplitsByTextSoThatDuplicatesStayTogether) {
  std::string lines;
  for (int i = 0; i < 2000; ++i) lines += "{\"text\":\"row " + std::to_string(i % 1000) + "\"}\n";
  DataSpec spec;
  spec.eval_fraction = 0.2;
  const Reading reading = read(lines, spec);
  EXPECT_NEAR(static_cast<double>(reading.eval.size()), 400, 60);
  std::set<std::vector<int32_t>> train;
  for (int64_t i = 0; i < reading.train.size(); ++i) train.insert(reading.train.example(i).tokens);
  for (int64_t i = 0; i < reading.eval.size(); ++i) EXPECT_FALSE(train.contains(reading.eval.example(i).tokens));
  spec.max_examples = 100;
  const Reading limited = read(lines, spec);
  EXPECT_EQ(limited.train.size() + limited.eval.size(), 100);
}

TEST(Dataset, ReportsLengths) {
  std::string lines;
  for (int i = 1; i <= 100; ++i) lines += "{\"text\":\"" + std::string(static_cast<size_t>(i), 'x') + "\"}\n";
  const LengthReport report = lengths_of(read(lines).train);
  EXPECT_EQ(report.to_string(), "100 examples, 5250 tokens, 5150 learned; length min 3, median 52, p95 97, max 102");
}

TEST(Dataset, HashFollowsTokensLabelsAndBorders) {
  const auto hash = [](const std::string& lines) { return read(lines).train.content_hash(); };
  EXPECT_EQ(hash("{\"text\":\"x\"}"), hash("\n{ \"text\" : \"x\" }"));
  EXPECT_NE(hash("{\"text\":\"x\"}"), hash("{\"text\":\"y\"}"));
  EXPECT_NE(hash("{\"prompt\":\"ac\",\"completion\":\"d\"}"), hash("{\"prompt\":\"a\",\"completion\":\"cd\"}"));
}

const char* const sharegpt_call =
    R"({"conversations":[{"from":"human","value":"q"},{"from":"function_call","value":"{\"name\":\"f\",\"arguments\":{\"x\":1}}"},)"
    R"({"from":"observation","value":"1"},{"from":"gpt","value":"a"}],"system":"S","tools":"[{\"name\":\"f\"}]"})";

TEST(Dataset, ReadsShareGptAsMessages) {
  EXPECT_EQ(read(R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]})").text(0),
            read(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})").text(0));
  EXPECT_EQ(read(R"({"conversations":[{"role":"user","content":"q"},{"role":"assistant","content":"a","weight":1}],"system":"S"})").text(0),
            read(R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})").text(0));
  EXPECT_EQ(read(R"({"conversations":[{"from":"user","value":"q"},{"from":"gpt","value":"b","weight":0},{"from":"chatgpt","value":"a"}]})").text(0),
            "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n<|im_start|>assistant\n⟦a<|im_end|>⟧\n");
  EXPECT_EQ(messages_of_sharegpt(nlohmann::ordered_json::parse(sharegpt_call)).dump(),
            R"({"messages":[{"role":"system","content":"S"},{"role":"user","content":"q"},{"role":"assistant","content":"",)"
            R"("tool_calls":[{"type":"function","function":{"name":"f","arguments":{"x":1}}}]},{"role":"tool","content":"1"},)"
            R"({"role":"assistant","content":"a"}],"tools":"[{\"name\":\"f\"}]"})");
}

TEST(Dataset, ASystemTurnOfShareGptWinsOverTheColumn) {
  const auto messages = [](const std::string& turns) {
    return messages_of_sharegpt(nlohmann::ordered_json::parse(R"({"conversations":[)" + turns + R"(],"system":"column"})"))["messages"].dump();
  };
  const std::string answer = R"({"from":"gpt","value":"a"})", learned = R"({"role":"assistant","content":"a"}])";
  EXPECT_EQ(messages(R"({"from":"system","value":"turn"},)" + answer), R"([{"role":"system","content":"turn"},)" + learned);
  EXPECT_EQ(messages(R"({"role":"system","content":"turn"},)" + answer), R"([{"role":"system","content":"turn"},)" + learned);
  EXPECT_EQ(messages(answer), R"([{"role":"system","content":"column"},)" + learned);
}

TEST(Dataset, NamesWhatIsWrongInShareGpt) {
  const auto mistake = [](const std::string& conversations) { return read("{\"conversations\":" + conversations + "}").mistake(0); };
  EXPECT_THAT(mistake("[]"), HasSubstr("conversations: expected a list of at least one turn, found an empty one"));
  EXPECT_THAT(mistake(R"([{"from":"alien","value":"x"}])"), HasSubstr("conversations[0].from: expected one of human, user, gpt,"));
  EXPECT_THAT(mistake(R"([{"from":"human","value":3}])"), HasSubstr("conversations[0].value: expected a string, found the number 3"));
  EXPECT_THAT(mistake(R"([{"from":"function_call","value":"f 1"}])"), HasSubstr("conversations[0].value: expected the JSON text of a call"));
  EXPECT_THAT(mistake(R"([{"value":"x"}])"), HasSubstr("conversations[0].from: missing; expected a string"));
}

TEST(Dataset, TakesToolsAsAListOrItsJsonText) {
  const auto text = [](const std::string& tools) {
    static const ChatTemplate chat("{{ tools|tojson }}{% for m in messages %}<{{ m.content }}>{% endfor %}", "tools", {});
    std::istringstream stream(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}],"tools":)" + tools + "}");
    JsonlReader lines(stream);
    Reading reading;
    ExamplesInMemory sink(reading.train, reading.eval);
    reading.report = read_records(lines, "f", {DataSpec(), ExampleEncoder(), &chat}, false, sink, reading.diagnostics);
    return reading.diagnostics.empty() ? reading.text(0) : reading.mistake(0);
  };
  EXPECT_THAT(text(R"([{"name":"f"}])"), HasSubstr(R"([{"name": "f"}]<q>)"));
  EXPECT_EQ(text(R"("[{\"name\":\"f\"}]")"), text(R"([{"name":"f"}])"));
  EXPECT_EQ(text(R"("")"), text("null"));
  EXPECT_THAT(text(R"("f x")"), HasSubstr("f:1: tools: expected a list, or the JSON text of one, found a string"));
  EXPECT_EQ(text(R"(["{\"name\":\"f\"}"])"), text(R"([{"name":"f"}])"));
  EXPECT_THAT(text("[3]"), HasSubstr("f:1: tools[0]: expected an object, or the JSON text of one, found the number 3"));
}

TEST(Dataset, CountsRecordsWhoseToolsTheTemplateLeavesOut) {
  const std::string call = R"({"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":{}}}]})";
  const std::string answer = R"({"role":"assistant","content":"a"})";
  const Reading reading = read("{\"messages\":[" + call + "]}\n" + R"({"messages":[)" + answer + R"(],"tools":[{"name":"f"}]})" + "\n" +
                               R"({"messages":[)" + call + R"(],"tools":"[{\"name\":\"f\"}]"})" + "\n" +
                               R"({"messages":[)" + answer + "]}");
  EXPECT_EQ(reading.report.records, 4);
  EXPECT_EQ(reading.report.without_tool_calls, 2);
  EXPECT_EQ(reading.report.without_tools, 2);
  EXPECT_THAT(reading.report.warnings(),
              ElementsAre(HasSubstr("f: the chat template leaves out the tool calls of 2 of its 4 records"),
                          HasSubstr("f: the chat template leaves out the tools of 2 of its 4 records")));
  const FileReport sharegpt = read(sharegpt_call).report;
  EXPECT_EQ(std::pair(sharegpt.without_tool_calls, sharegpt.without_tools), std::pair(int64_t{1}, int64_t{1}));
  EXPECT_THAT(read("{\"messages\":[" + answer + "]}").report.warnings(), IsEmpty());
}

TEST(Dataset, TakesTheSystemTextBesideMessagesAsTheirFirst) {
  const std::string turns = R"({"role":"user","content":"q"},{"role":"assistant","content":"a"}])", own = R"({"role":"system","content":"own"},)";
  const std::string said = "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n⟦a<|im_end|>⟧\n";
  EXPECT_EQ(read(R"({"system":"S","messages":[)" + turns + "}").text(0), said);
  EXPECT_EQ(read(R"({"system":"S","prompt":[{"role":"user","content":"q"}],"completion":[{"role":"assistant","content":"a"}]})").text(0), said);
  const std::string without = read(R"({"messages":[)" + turns + "}").text(0);
  EXPECT_EQ(read(R"({"system":"","messages":[)" + turns + "}").text(0), without);
  EXPECT_EQ(read(R"({"system":null,"messages":[)" + turns + "}").text(0), without);
  EXPECT_EQ(read(R"({"system":"S","messages":[)" + own + turns + "}").text(0), read(R"({"messages":[)" + own + turns + "}").text(0));
  EXPECT_EQ(read(R"({"system":3,"messages":[)" + turns + "}").mistake(0), "f:1: system: expected a string, found the number 3");
}

TEST(Dataset, CountsTheSystemTextsBesidePromptsThatAreTexts) {
  const FileReport report = read(R"({"prompt":"p","completion":"c","system":"S"})" "\n" R"({"prompt":"p","completion":"c"})").report;
  EXPECT_THAT(report.warnings(), ElementsAre("f: a prompt that is a text leaves out the system text of 1 of its 2 records, which are trained "
                                             "without (records of messages hold it)"));
}

TEST(Dataset, NamesWhatReplacesOpenAIsOlderFunctionCalls) {
  const std::string call = R"("function_call":{"name":"f","arguments":"{}"})", list = R"([{"type": "function", "function": )";
  for (const char* content : {R"("content":"",)", R"("content":null,)", ""}) {
    const std::string turns = R"([{"role":"assistant",)" + std::string(content) + call + "}]";
    EXPECT_EQ(read(R"({"messages":)" + turns + "}").mistake(0), "f:1: messages[0].function_call: is OpenAI's older form of a call; expected "
                                                                "\"tool_calls\": " + list + R"({"name": …, "arguments": …}}])");
  }
  EXPECT_THAT(read(R"({"conversations":[{"role":"assistant","content":"",)" + call + "}]}").mistake(0), HasSubstr("function_call: is OpenAI's"));
  EXPECT_THAT(read(R"({"messages":[{"role":"function","content":"r"}]})").mistake(0), HasSubstr("found \"function\", whose newer name is tool"));
  const std::string answer = R"("messages":[{"role":"assistant","content":"a","function_call":null}])", turn = R"([{"from":"gpt","value":"a"}])";
  const std::string wanted = "f:1: functions: is OpenAI's older name; expected \"tools\": " + list + "…}, …]";
  EXPECT_EQ(read("{" + answer + R"(,"functions":[{"name":"f"}]})").mistake(0).substr(0, wanted.size()), wanted);
  EXPECT_THAT(read(R"({"conversations":)" + turn + R"(,"functions":[{"name":"f"}]})").mistake(0), HasSubstr(": functions: is OpenAI's older name"));
  EXPECT_EQ(read("{" + answer + R"(,"functions":[]})").diagnostics.size(), 0u);
  EXPECT_EQ(read("{" + answer + R"(,"functions":null,"tools":[]})").diagnostics.size(), 0u);
}

TEST(Dataset, TellsOfAContextBesideAlpacasFields) {
  const FileReport report = read(R"({"instruction":"a","context":"C","output":"b"})" "\n" R"({"instruction":"a","context":"","output":"b"})").report;
  EXPECT_THAT(report.warnings(), ElementsAre("f: Alpaca's prompt leaves out the context of 1 of its 2 records, which are trained without (under "
                                             "the name `input` it is read)"));
  EXPECT_THAT(read(R"({"instruction":"a","context":"C","response":"b"})").mistake(0),
              testing::EndsWith("; instruction, context and response are accepted under the names instruction, input and output"));
}

TEST(Dataset, CountsWhatAlpacasPromptLeavesOut) {
  const std::string record = R"({"instruction":"a","input":"","output":"b")";
  const FileReport report = read(record + R"(,"system":"sys","history":[["x","y"]]})" "\n" + record + R"(,"system":"","history":[]})" "\n" +
                                 record + R"(,"system":null,"history":null})" "\n" + record + R"(,"history":[["x","y"]]})").report;
  EXPECT_THAT(report.warnings(),
              ElementsAre("f: Alpaca's prompt leaves out the system text of 1 of its 4 records, which are trained without (records of "
                          "messages hold it)",
                          HasSubstr("f: Alpaca's prompt leaves out the history of 2 of its 4 records")));
}

TEST(Dataset, RefusesDeepNestingInJsonTextsWithinRecords) {
  const std::string deep(200'000, '['), messages = R"("messages":[{"role":"assistant","content":"a"}])";
  EXPECT_THAT(read("{" + messages + R"(,"tools":")" + deep + "\"}").mistake(0),
              HasSubstr("f:1: tools: expected a list, or the JSON text of one, found a string: column 65: JSON nested deeper than 64 levels"));
  EXPECT_THAT(read(R"({"conversations":[{"from":"function_call","value":")" + deep + "\"}]}").mistake(0),
              HasSubstr("f:1: conversations[0].value: expected the JSON text of a call {\"name\": …, \"arguments\": …} or of a list of "
                        "calls: column 65: JSON nested deeper than 64 levels"));
  const std::string call = R"([{\"name\":\"f\",\"arguments\":)" + deep + std::string(deep.size(), ']') + "}]";
  EXPECT_THAT(read(R"({"conversations":[{"from":"function_call","value":")" + call + "\"}]}").mistake(0), HasSubstr("nested deeper than 64"));
  EXPECT_THAT(read(R"({"conversations":[{"from":"gpt","value":"a"}],"tools":")" + deep + "\"}").mistake(0), HasSubstr("f:1: tools: "));
}

TEST(Dataset, NamesWrongToolCalls) {
  const auto mistake = [](const std::string& calls) {
    return read(R"({"messages":[{"role":"assistant","tool_calls":)" + calls + "}]}").mistake(0);
  };
  EXPECT_THAT(mistake(R"("f")"), HasSubstr("messages[0].tool_calls: expected a list of calls, found a string"));
  EXPECT_THAT(mistake(R"([{"function":"f"}])"), HasSubstr("messages[0].tool_calls[0]: expected {\"type\": \"function\""));
}

TEST(Dataset, KeepsWhichFileAnExampleIsFrom) {
  Dataset dataset("a");
  dataset.add({{1, 2}, {0, 1}, "", 1});
  dataset.begin_source("empty");
  dataset.begin_source("b");
  const std::string two_files = [&] {
    Dataset copy = dataset;
    copy.add({{3, 4}, {0, 1}, "", 1});
    return copy.content_hash();
  }();
  dataset.add({{3, 4}, {0, 1}, "", 1});
  EXPECT_EQ(dataset.source(0), "a");
  EXPECT_EQ(dataset.source(1), "b");
  EXPECT_EQ(dataset.source_size(0), 1);
  EXPECT_EQ(dataset.source_size(1), 0);
  EXPECT_EQ(dataset.content_hash(), two_files);
  Dataset one("c");
  one.add({{1, 2}, {0, 1}, "", 1});
  one.add({{3, 4}, {0, 1}, "", 2});
  EXPECT_NE(one.content_hash(), two_files);
}

TEST(Dataset, ReadsFilesAndRefusesWhatCannotBeRead) {
  const std::string path = testing::TempDir() + "cotune_dataset_test.jsonl";
  std::ofstream(path) << "{\"text\":\"x\"}\n";
  DataSpec spec;
  spec.train = {{path}};
  spec.eval = path;
  Diagnostics diagnostics;
  const JobData data = read_job_data({spec, ExampleEncoder()}, diagnostics);
  EXPECT_TRUE(diagnostics.empty());
  EXPECT_EQ(data.train.size(), 1);
  EXPECT_EQ(data.eval.size(), 1);
  EXPECT_EQ(data.files.size(), 2u);
  std::remove(path.c_str());
  spec.eval = testing::TempDir();
  EXPECT_EQ(read_job_data({spec, ExampleEncoder()}, diagnostics).files, (std::vector<FileReport>{{.file = path}, {.file = spec.eval}}));
  ASSERT_EQ(diagnostics.size(), 2u);
  EXPECT_EQ(diagnostics.items()[0].to_string(), path + ": cannot open: No such file or directory");
  EXPECT_EQ(diagnostics.items()[1].to_string(), spec.eval + ": is not a regular file");
}

TEST(Dataset, SaysWhyNoExampleIsLeft) {
  const std::string head = "f: no example is left: ";
  const std::string question = R"({"messages":[{"role":"user","content":"q"})";
  EXPECT_EQ(read(question + "]}").mistake(0), head + "1 record has no assistant message that is learned");
  EXPECT_EQ(read(question + R"(,{"role":"assistant","content":"a","weight":0}]})").mistake(0),
            head + "1 record has no assistant message that is learned");
  EXPECT_EQ(read(R"({"input_ids":[5,6],"labels":[5,-100]})").mistake(0), head + "1 record has no label but -100 behind the first token");
  DataSpec spec;
  spec.special_tokens = SpecialTokens::parsed;
  spec.max_length = 3;
  const std::string cut = R"({"prompt":"123","completion":"4"})", longer = R"({"prompt":"1234","completion":"4"})";
  EXPECT_THAT(read(cut + "\n" + longer, spec).mistake(0), HasSubstr("2 records are cut to the first 3 tokens"));
}

TEST(Dataset, OfWhichNoExampleIsLeftIsAMistakeAtTheOptionThatIsTheCause) {
  const std::string path = testing::TempDir() + "cotune_lost_test.jsonl";
  std::ofstream(path) << R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})" << "\n";
  JobSpec job;
  job.name = "a";
  job.data.train = {{path}};
  job.places = {{"data.train", {"j.yaml", 5, "jobs[0].data.train"}}};
  const ChatTemplate silent("{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}", "silent", {});
  const auto mistake = [&] {
    Diagnostics mistakes;
    read_job_data({job.data, ExampleEncoder(), &silent, 0, &job}, mistakes);
    return mistakes.size() == 1 ? mistakes.items()[0].to_string() : "not one mistake";
  };
  EXPECT_EQ(mistake(), "j.yaml:5: jobs[0].data.train: no example of " + path + " is left to job `a`: the chat template renders no assistant "
                       "message of 1 record; `data.chat_template` names another");
  job.data.chat_template = "silent.jinja";
  job.places["data.chat_template"] = {"j.yaml", 2, "defaults.data.chat_template"};
  EXPECT_EQ(mistake(), "j.yaml:2: defaults.data.chat_template: no example of " + path + " is left to job `a`: the chat template renders no "
                       "assistant message of 1 record; accepted is one that does");
  std::ofstream(path) << R"({"prompt":"12","completion":"3"})" << "\n";
  job.data.max_length = 2;
  job.places["data.max_length"] = {"--set", 0, "jobs.a.data.max_length"};
  EXPECT_EQ(mistake(), "--set: jobs.a.data.max_length: no example of " + path + " is left to job `a`: 1 record is cut to the first 2 tokens "
                       "(max_length), before anything that is learned; raise max_length, or `truncation: left` keeps the ends");
  std::remove(path.c_str());
}

TEST(Dataset, HasTextsByItsFormatOrByTheFirstRecordOfAFile) {
  const std::string path = testing::TempDir() + "cotune_texts_test.jsonl";
  DataSpec spec;
  spec.train = {{path}};
  EXPECT_FALSE(has_texts(spec)) << "there is no file";
  std::ofstream(path) << "oops\n{\"input_ids\":[1],\"labels\":[1]}\n";
  EXPECT_FALSE(has_texts(spec));
  spec.format = DataFormat::text;
  EXPECT_TRUE(has_texts(spec));
  spec.format = DataFormat::tokens;
  EXPECT_FALSE(has_texts(spec));
  spec.format = DataFormat::automatic;
  spec.eval = testing::TempDir() + "cotune_eval_texts_test.jsonl";
  std::ofstream(spec.eval) << "{\"text\":\"x\"}\n";
  EXPECT_TRUE(has_texts(spec));
  std::remove(path.c_str());
  std::remove(spec.eval.c_str());
}

TEST(DescribeExample, ShowsControlCharactersAsText) {
  EXPECT_EQ(read("{\"text\":\"a\\u001b[2J\"}").text(0), "<s>⟦a\\x1b[2J</s>⟧");
}

TEST(DatasetCopies, ShareTheirExamplesUntilOneGetsMore) {
  Dataset first("a");
  first.add({{1, 2}, {0, 1}, "a", 1});
  Dataset second = first;
  EXPECT_EQ(first.tokens(0).data(), second.tokens(0).data());
  second.add({{7}, {1}, "a", 2});
  EXPECT_EQ(first.size(), 1);
  EXPECT_EQ(first.largest_token(), 2);
  EXPECT_EQ(second.size(), 2);
  EXPECT_EQ(second.token_count(), 3);
  EXPECT_EQ(second.tokens(0)[1], 2);
}

}  // namespace
}  // namespace cotune
