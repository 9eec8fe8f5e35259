#include "data/records/field_line.h"

#include <gtest/gtest.h>

#include <string>

namespace cotune {
namespace {

TEST(FieldLine, IsTheOneOnWhichItsValueBegins) {
  const std::string text =
      "{\n"
      "  \"id\": \"messages[1]: } ] , \\\" \",\n"
      "  \"messages\": [\n"
      "    {\"role\": \"user\", \"content\": [1,\n"
      "      2]},\n"
      "    {\n"
      "      \"content\": \"x\",\n"
      "      \"role\":\n"
      "        \"usr\"}\n"
      "  ],\n"
      "  \"t\\u006fols\": 3\n"
      "}\n";
  EXPECT_EQ(field_line(text, ""), 1);
  EXPECT_EQ(field_line(text, "messages"), 3);
  EXPECT_EQ(field_line(text, "messages[0]"), 4);
  EXPECT_EQ(field_line(text, "messages[0].content[1]"), 5);
  EXPECT_EQ(field_line(text, "messages[1]"), 6);
  EXPECT_EQ(field_line(text, "messages[1].role"), 9);
  EXPECT_EQ(field_line(text, "tools"), 11);
}

TEST(FieldLine, OfAFieldThatIsNotThereIsThatOfWhatShouldHoldIt) {
  const std::string text = "{\"messages\": [\n{},\n{\"role\": 1}]}";
  EXPECT_EQ(field_line(text, "tools"), 1);
  EXPECT_EQ(field_line(text, "messages[1].content"), 3);
  EXPECT_EQ(field_line(text, "messages[0].role"), 2);
  EXPECT_EQ(field_line(text, "messages[7]"), 1);
  EXPECT_EQ(field_line("\n\n3", "messages"), 3);
  EXPECT_EQ(field_line("", "messages"), 1);
}

TEST(FieldLine, OfATextThatIsNoneIsSomewhereInIt) {
  const std::string text = "{\"messages\": [\n{\"role\": \"a\\\"b\",\n\"content\": [[]]}, 3]}";
  for (size_t size = 0; size <= text.size(); ++size) {
    for (const char* field : {"messages[1]", "messages[0].content[0]", "messages[", "messages[x]", "x"}) {
      const int line = field_line(text.substr(0, size), field);
      EXPECT_TRUE(line >= 1 && line <= 3);
    }
  }
}

}  // namespace
}  // namespace cotune
