#include "data/records/prompt_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

class PromptFiles : public ::testing::Test {
 protected:
  PromptFiles() {
    char name[] = "/tmp/cotune-prompts-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~PromptFiles() override { fs::remove_all(folder_); }
  std::vector<FilePrompt> read(const std::string& text, const std::string& name = "prompts.jsonl") const {
    write_file_atomically(folder_ / name, text);
    PromptFile file(folder_ / name);
    std::vector<FilePrompt> prompts;
    while (auto prompt = file.next()) prompts.push_back(std::move(*prompt));
    return prompts;
  }
  std::string mistake(const std::string& text) const {
    try {
      read(text);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  fs::path folder_;
};

TEST_F(PromptFiles, HoldTheRecordsOfDataFilesWithoutTheirAnswers) {
  const auto prompts = read(R"({"id": 7, "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})" "\n\n"
                            R"({"conversations": [{"from": "human", "value": "c"}]})" "\n"
                            R"({"prompt": "d", "completion": "e"})" "\n"
                            R"({"instruction": "f", "input": "", "output": "g"})" "\n");
  ASSERT_EQ(prompts.size(), 4u);
  EXPECT_EQ(prompts[0].messages.size(), 1u);
  EXPECT_EQ(prompts[0].record["id"], 7);
  EXPECT_EQ(prompts[0].record["messages"].size(), 2u);
  EXPECT_EQ(prompts[1].messages[0]["content"], "c");
  EXPECT_EQ(prompts[1].line, 3);
  EXPECT_EQ(prompts[2].text, "d");
  EXPECT_TRUE(prompts[2].messages.is_null());
  EXPECT_FALSE(prompts[2].is_whole_text);
  EXPECT_THAT(prompts[3].text, ::testing::HasSubstr("### Instruction:\nf\n\n### Response:\n"));
  EXPECT_TRUE(prompts[3].is_whole_text);
}

TEST_F(PromptFiles, HoldQuestionsAndTextsWhereNothingElseAsks) {
  const auto prompts = read(R"({"question": "a", "answer": "b"})" "\n" R"({"query": "a"})" "\n" R"({"problem": "a"})" "\n"
                            R"({"question": "b", "prompt": "a"})" "\n" R"({"id": 7, "text": "a"})" "\n");
  ASSERT_EQ(prompts.size(), 5u);
  for (const FilePrompt& prompt : prompts) {
    EXPECT_EQ(prompt.text, "a");
    EXPECT_EQ(prompt.only_raw, &prompt == &prompts.back());
  }
  EXPECT_EQ(prompts[0].record.dump(), R"({"question":"a","answer":"b"})");
  EXPECT_EQ(prompts[4].record.dump(), R"({"id":7,"prompt":"a"})");
}

TEST_F(PromptFiles, JoinTheTextPartsOfMessages) {
  const auto prompts = read(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, )"
                            R"({"type": "text", "text": "b"}]}]})" "\n");
  EXPECT_EQ(prompts[0].messages.dump(), R"([{"role":"user","content":"ab"}])");
  EXPECT_EQ(prompts[0].record["messages"][0]["content"].size(), 2u);
}

TEST_F(PromptFiles, TakeAPromptOfMessagesAsAChat) {
  const auto prompts = read(R"({"prompt": [{"role": "user", "content": "a"}], "completion": [{"role": "assistant", "content": "b"}], )"
                            R"("tools": [{"name": "f"}]})" "\n");
  EXPECT_EQ(prompts[0].messages.dump(), R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(prompts[0].tools.dump(), R"([{"name":"f"}])");
  EXPECT_THAT(mistake(R"({"prompt": [{"role": "usr", "content": "a"}]})"),
              ::testing::HasSubstr("prompts.jsonl:1: prompt[0].role: expected one of"));
}

TEST_F(PromptFiles, OfPlainTextHaveAPromptALine) {
  const auto prompts = read("one {\r\n\n  two\n", "prompts");
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].text, "one {");
  EXPECT_EQ(prompts[1].text, "  two");
  EXPECT_EQ(read("{braces}\n", "braces.txt")[0].text, "{braces}");
  EXPECT_TRUE(read("").empty());
}

TEST_F(PromptFiles, AListOfRecordsIsOneMistake) {
  for (const char* text : {"[\n {\"prompt\": \"x\"\n }\n]\n", "[{\"prompt\": \"x\"}]"}) {
    write_file_atomically(folder_ / "list.json", text);
    PromptFile file(folder_ / "list.json");
    try {
      file.next();
      FAIL() << text;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("list.json:1: expected an object on each line (JSONL), found a list; `jq -c '.[]'` makes lines of one"));
    }
    EXPECT_FALSE(file.next()) << "every other line would be a mistake too";
  }
  EXPECT_EQ(read("[1, 2] is what?", "prompts")[0].text, "[1, 2] is what?");
}

TEST_F(PromptFiles, TakeTheSystemTextBesideMessagesAsTheirFirst) {
  const auto prompts = read(R"({"messages": [{"role": "user", "content": "a"}], "system": "s"})" "\n" R"({"prompt": [{"role": "user", "content": "a"}], "system": "s"})");
  for (const FilePrompt& prompt : prompts) {
    EXPECT_EQ(prompt.messages.dump(), R"([{"role":"system","content":"s"},{"role":"user","content":"a"}])");
  }
}

TEST_F(PromptFiles, MistakesNameTheirPlace) {
  EXPECT_THAT(mistake("{\"prompt\": 3}"), ::testing::HasSubstr("prompts.jsonl:1: prompt: expected a string, found the number 3"));
  EXPECT_THAT(mistake("{\"prompt\": \"x\"}\nnext\n"), ::testing::HasSubstr("prompts.jsonl:2: "));
  EXPECT_THAT(mistake("{\"answer\": \"x\"}"),
              ::testing::HasSubstr("expected the field messages, conversations, prompt, instruction, question, query, problem or text; found answer"));
  EXPECT_THAT(mistake("{\"question\": [1]}"), ::testing::HasSubstr("prompts.jsonl:1: question: expected a string, found a list"));
  EXPECT_THAT(mistake(R"({"messages": [{"role": "assistant", "content": "b"}]})"), ::testing::HasSubstr("messages: nothing is asked"));
  EXPECT_THAT(mistake("{\"prompt\": \"x\"}\n[3]"), ::testing::HasSubstr("prompts.jsonl:2: expected an object, found a list"));
  EXPECT_THROW(PromptFile(folder_ / "none"), UserError);
  EXPECT_THAT(mistake("\x1f\x8b\x08"), ::testing::HasSubstr("prompts.jsonl: the gzip data end early"));
}

}  // namespace
}  // namespace cotune
