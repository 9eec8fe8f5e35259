#include "schedule/action.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace cotune {
namespace {

TEST(ActionJson, LeavesOutDefaults) {
  EXPECT_EQ(to_json_line({.kind = ActionKind::forward, .microbatch = 3}), R"({"kind":"forward","microbatch":3})");
  EXPECT_EQ(to_json_line({}), R"({"kind":"forward"})");
}

TEST(ActionJson, RoundTripsEveryKindWithEveryField) {
  for (int kind = 0; kind <= static_cast<int>(ActionKind::free); ++kind) {
    const Action action{static_cast<ActionKind>(kind), 1, 2, 3, 4'000'000'000, 5, 6, 7, 8, 9'000'000'000};
    EXPECT_EQ(action_from_json_line(to_json_line(action)), action);
  }
}

TEST(ActionJson, NamesTheFieldThatIsWrong) {
  const auto message_of = [](const char* line) -> std::string {
    try {
      action_from_json_line(line);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(message_of("{"), "action: not JSON: {");
  EXPECT_EQ(message_of("[]"), "action: must be a JSON object, got []");
  EXPECT_EQ(message_of("{}"), "action.kind: is missing");
  EXPECT_EQ(message_of(R"({"kind":"fly"})"), R"(action.kind: unknown kind "fly")");
  EXPECT_EQ(message_of(R"({"kind":"free","job":1.5})"), "action.job: must be an integer of 32 bits, got 1.5");
  EXPECT_EQ(message_of(R"({"kind":"free","job":3000000000})"),
            "action.job: must be an integer of 32 bits, got 3000000000");
  EXPECT_EQ(message_of(R"({"kind":"free","job":-3000000000})"),
            "action.job: must be an integer of 32 bits, got -3000000000");
  EXPECT_EQ(message_of(R"({"kind":"free","step":1})"), "action.step: unknown key");
}

}  // namespace
}  // namespace cotune
