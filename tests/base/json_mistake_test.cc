#include "base/json_mistake.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace cotune {
namespace {

std::string mistake(std::string_view text) {
  try {
    json_of_file(text, "a.json");
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(JsonMistake, HasItsPlaceAndNothingOfTheLibrary) {
  EXPECT_EQ(mistake("{\"a\": 1}"), "");
  EXPECT_EQ(mistake("{"), "a.json:1: column 2: not JSON: unexpected end of input; expected string literal");
  EXPECT_EQ(mistake("{\n  \"a\": 1,\n  x\n}"), "a.json:3: column 3: not JSON: invalid literal; last read: '1,<U+000A>  x'; expected string literal");
  EXPECT_EQ(mistake("").substr(0, 54), "a.json:1: column 1: not JSON: unexpected end of input;");
  EXPECT_EQ(mistake("[1]\n]"), "a.json:2: column 1: not JSON: unexpected ']'; expected end of input");
  EXPECT_EQ(mistake("[1e999]"), "a.json: not JSON: a number is out of range");
  for (const char* text : {"", "{", "[1,]", "\xff", "\"\\ud800\"", "[1e999]"}) {
    EXPECT_EQ(mistake(text).find("json.exception"), std::string::npos) << mistake(text);
    EXPECT_EQ(mistake(text).find("parse error"), std::string::npos) << mistake(text);
  }
}

TEST(JsonMistake, OfAValueSaysWhatWasFound) {
  try {
    nlohmann::json(nullptr).get<std::string>();
    FAIL();
  } catch (const nlohmann::json::exception& error) {
    EXPECT_EQ(json_reason(error), "type must be string, but is null");
  }
}

}  // namespace
}  // namespace cotune
