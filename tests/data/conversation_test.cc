#include "data/records/conversation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace cotune {
namespace {

namespace fs = std::filesystem;

std::string contents(const Conversation& conversation) {
  std::string text;
  for (const auto& message : conversation.messages()) {
    text += message["role"].get<std::string>().substr(0, 1) + ":" + message["content"].get<std::string>() + " ";
  }
  return text;
}

TEST(Conversation, StepsBack) {
  Conversation chat("Be brief.");
  EXPECT_FALSE(chat.undo());
  EXPECT_FALSE(chat.take_back_answer());
  chat.say("one");
  EXPECT_TRUE(chat.awaits_answer());
  chat.answer("1");
  chat.say("two");
  chat.answer("2");
  EXPECT_EQ(contents(chat), "s:Be brief. u:one a:1 u:two a:2 ");
  EXPECT_TRUE(chat.take_back_answer());
  EXPECT_EQ(contents(chat), "s:Be brief. u:one a:1 u:two ");
  EXPECT_FALSE(chat.take_back_answer());
  EXPECT_TRUE(chat.undo());
  EXPECT_EQ(contents(chat), "s:Be brief. u:one a:1 ");
  chat.set_system("Be long.");
  EXPECT_TRUE(chat.undo());
  EXPECT_EQ(contents(chat), "s:Be long. ");
  EXPECT_FALSE(chat.undo());
  chat.say("three");
  chat.begin_anew();
  EXPECT_EQ(contents(chat), "s:Be long. ");
  chat.set_system(std::nullopt);
  EXPECT_EQ(contents(chat), "");
}

class SessionFiles : public ::testing::Test {
 protected:
  SessionFiles() {
    char name[] = "/tmp/cotune-session-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~SessionFiles() override { fs::remove_all(folder_); }
  fs::path path() const { return folder_ / "chat.json"; }
  std::string mistake(const std::string& text) const {
    write_file_atomically(path(), text);
    try {
      read_session(path());
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  fs::path folder_;
};

TEST_F(SessionFiles, AreReadAsTheyWereWritten) {
  SessionFile session;
  session.of_all.emplace("short");
  session.of_all->say("one\nand \xff more");
  write_session(path(), session);
  EXPECT_EQ(read_session(path()).of_all->messages(), session.of_all->messages());
  SessionFile several;
  several.by_adapter["a"].say("x");
  several.by_adapter["base"].say("y");
  write_session(path(), several);
  const SessionFile again = read_session(path());
  EXPECT_FALSE(again.of_all);
  EXPECT_EQ(contents(again.by_adapter.at("a")), "u:x ");
  EXPECT_EQ(contents(again.by_adapter.at("base")), "u:y ");
}

TEST_F(SessionFiles, KeepWhatElseStandsInThem) {
  write_file_atomically(path(), R"({"id": 1, "messages": [], "tools": [{"name": "f"}]})");
  SessionFile session = read_session(path());
  EXPECT_EQ(tools_of(session).dump(), R"([{"name":"f"}])");
  session.of_all->say("x");
  write_session(path(), session);
  EXPECT_EQ(read_file(path()), R"({"id":1,"messages":[{"role":"user","content":"x"}],"tools":[{"name":"f"}]})" "\n");
  session.by_adapter["a"] = *std::exchange(session.of_all, std::nullopt);
  write_session(path(), session);
  EXPECT_EQ(read_file(path()), R"({"id":1,"tools":[{"name":"f"}],"conversations":{"a":[{"role":"user","content":"x"}]}})" "\n");
  EXPECT_TRUE(tools_of(SessionFile()).is_null());
}

TEST_F(SessionFiles, MistakesAreNamed) {
  using ::testing::EndsWith;
  const std::string accepted = R"({"messages": […]}, or {"conversations": {"ADAPTER": […]}} of several adapters)";
  EXPECT_THAT(mistake("[]\n"), EndsWith("chat.json:1: is no session: expected " + accepted + "; found a list"));
  EXPECT_THAT(mistake(R"({"id": 3, "text": "x"})"), EndsWith("chat.json:1: is no session: expected " + accepted + "; found the fields id, text"));
  EXPECT_THAT(mistake(R"({"messages": [{"role": "usr", "content": "x"}]})" "\n"),
              EndsWith("chat.json:1: messages[0].role: expected one of system, developer, user, assistant, tool, tool_results, ipython; found \"usr\""));
  EXPECT_THAT(mistake(R"({"conversations": {"a": 3}})"), EndsWith("chat.json:1: conversations.a: expected a list of at least one message, found the number 3"));
  EXPECT_THAT(mistake("{\n\"messages\": [{\"role\": \"user\", \"content\": 7}]}"),
              EndsWith("chat.json:2: messages[0].content: expected a string or a list of parts, found the number 7"));
  EXPECT_THAT(mistake("{\n\"conversations\": {\n\"a\": [],\n\"b.c\":\n3}\n}"),
              EndsWith("chat.json:5: conversations.b.c: expected a list of at least one message, found the number 3"));
  const auto broken = [&](const std::string& text, const std::string& place) {
    EXPECT_THAT(mistake(text), ::testing::AllOf(::testing::HasSubstr("chat.json:" + place + ": not JSON: "), EndsWith("; a session is one object of JSON: " + accepted)));
  };
  broken("{", "1: column 2");
  broken("", "1: column 1");
  broken("{\"messages\": []}\n{\"messages\": []}\n", "2: column 1");
  broken("{\"messages\":\n [{]}", "2: column 4");
  EXPECT_EQ(mistake(R"({"messages": []})"), "");
  fs::remove(path());
  EXPECT_THROW(read_session(path()), UserError);
}

}  // namespace
}  // namespace cotune
