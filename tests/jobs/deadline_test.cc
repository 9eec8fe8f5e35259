#include "jobs/deadline.h"

#include <gtest/gtest.h>

namespace cotune {
namespace {

TEST(Deadline, IsSecondsSince1970) {
  EXPECT_EQ(parse_deadline("1970-01-01T00:00:00Z"), 0);
  EXPECT_EQ(parse_deadline("1970-01-01T00:01Z"), 60);
  EXPECT_EQ(parse_deadline("2026-01-31T18:00:05Z"), 1769882405);
  EXPECT_EQ(parse_deadline("1969-12-31T23:59:59Z"), -1);
}

TEST(Deadline, WithoutZoneIsOfUtcAndADateMeansItsEnd) {
  EXPECT_EQ(parse_deadline("1970-01-02T00:00"), 86400);
  EXPECT_EQ(parse_deadline("1970-01-01"), 86400);
}

TEST(Deadline, EastOfGreenwichIsEarlier) {
  EXPECT_EQ(parse_deadline("1970-01-01T02:30:00+02:30"), 0);
  EXPECT_EQ(parse_deadline("1970-01-01T00:00:00-01:00"), 3600);
}

TEST(Deadline, ThatIsNoTimeIsNone) {
  for (const char* text : {"", "tomorrow", "2026-13-01", "2026-02-30", "2026-1-1", "2026-01-01T", "2026-01-01T24:00",
                           "2026-01-01T10", "2026-01-01T10:00:", "2026-01-01T10:00Zulu", "2026-01-01T10:00+1",
                           "2026-01-01 10:00", "2026-01-01T10:00+01:00Z"}) {
    EXPECT_FALSE(parse_deadline(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace cotune
