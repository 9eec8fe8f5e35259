#include "evaluate/choice_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/records/record_error.h"
#include "evaluate/choice_score.h"

namespace cotune {
namespace {

ChoiceRecord read(const std::string& json) { return choice_record_of(nlohmann::ordered_json::parse(json)); }

size_t answer(const std::string& answer) {
  return read(R"({"question": "q", "choices": ["red", "B", "3"], "answer": )" + answer + "}").answer;
}

std::string mistake(const std::string& json) {
  try {
    read(json);
  } catch (const RecordError& error) {
    return error.field() + ": " + error.what();
  }
  return "";
}

TEST(ChoiceRecord, TheAnswerIsANumberALetterOrAText) {
  EXPECT_EQ(answer("0"), 0u);
  EXPECT_EQ(answer("\"A\""), 0u);
  EXPECT_EQ(answer("\" red \""), 0u);
  EXPECT_EQ(answer("\"B\""), 1u);
  EXPECT_EQ(answer("\"C\""), 2u);
  EXPECT_EQ(answer("\"3\""), 2u) << "a choice's own text comes first";
  EXPECT_EQ(answer("\"1\""), 1u);
  EXPECT_EQ(read(R"({"prompt": "q", "choices": {"text": ["x", "y"], "label": ["1", "2"]}, "answerKey": "1"})").answer, 0u);
  EXPECT_EQ(read(R"({"prompt": "q", "choices": {"text": ["0", "1", "2"], "label": ["1", "2", "3"]}, "answerKey": "2"})").answer, 1u)
      << "its own labels go before texts";
  EXPECT_EQ(read(R"({"prompt": "q", "choices": {"text": ["A", "C", "G"], "label": ["A", "B", "C"]}, "answerKey": "C"})").answer, 2u);
  EXPECT_EQ(read(R"({"prompt": "q", "choices": {"text": ["A", "C", "G"], "label": ["1", "2", "3"]}, "answerKey": "C"})").answer, 1u);
  EXPECT_EQ(read(R"({"messages": [{"role": "user", "content": "q"}], "choices": ["x", "y"], "label": 1})").answer, 1u);
}

TEST(ChoiceRecord, HasTheSystemTextBesideItsMessages) {
  const ChoiceRecord record = read(R"({"system": "s", "messages": [{"role": "user", "content": "q"}], "choices": ["x", "y"], "answer": 0})");
  ASSERT_EQ(record.messages.size(), 2u);
  EXPECT_EQ(record.messages[0]["role"], "system");
  EXPECT_EQ(record.messages[0]["content"], "s");
}

TEST(ChoiceRecord, MistakesNameTheirField) {
  using ::testing::StartsWith;
  EXPECT_THAT(mistake(R"({"choices": ["x", "y"], "answer": 0})"), StartsWith("prompt: missing"));
  EXPECT_THAT(mistake(R"({"question": "q", "choices": ["x", "y"]})"), StartsWith("answer: missing; expected the right choice"));
  EXPECT_THAT(mistake(R"({"question": "q", "choices": "x", "answer": 0})"),
              StartsWith("choices: expected a list of texts, found a string"));
  EXPECT_THAT(mistake(R"({"question": "q", "choices": ["x"], "answer": 0})"), StartsWith("choices: expected at least two texts, found 1"));
  EXPECT_THAT(mistake(R"({"question": "q", "choices": ["x", 3], "answer": 0})"),
              StartsWith("choices[1]: expected a string, found the number 3"));
  EXPECT_THAT(mistake(R"({"question": "q", "choices": ["x", " "], "answer": 0})"), StartsWith("choices[1]: is empty"));
  for (const char* wrong : {"2", "-1", "\"D\"", "\"2\"", "null", "1.5", "\"\""}) {
    EXPECT_THAT(mistake(std::string(R"({"question": "q", "choices": ["x", "y"], "answer": )") + wrong + "}"),
                StartsWith("answer: expected a number from 0 to 1, one of A, B, or the text of a choice; found "))
        << wrong;
  }
  EXPECT_THAT(
      mistake(
          R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "choices": ["x", "y"], "answer": 0})"),
      StartsWith("messages: ends with an answer"));
}

TEST(ChoiceScore, IsByLogProbabilityAndByLogProbabilityPerCharacter) {
  const std::vector<std::string> texts = {"a", "abcdefgh", "é"};
  const ChoiceScore score = score_choices(std::vector<double>{-2, -8, -3}, texts);
  EXPECT_EQ(score.likeliest, 0u);
  EXPECT_EQ(score.likeliest_by_length, 1u);
  EXPECT_EQ(score_choices(std::vector<double>{-6, -12}, std::vector<std::string>{"нет", "yes maybe"}).likeliest_by_length, 1u)
      << "characters are counted, not bytes";
  EXPECT_EQ(score_choices(std::vector<double>{-4, -4}, std::vector<std::string>{"a", "b"}).likeliest, 0u);
}

}  // namespace
}  // namespace cotune
