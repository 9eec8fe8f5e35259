#include "ops/within_memory.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>

#include "base/error.h"
#include "ops/memory.h"

namespace cotune {
namespace {

template <typename Error>
std::string rethrown_text(const Error& error) {
  try {
    within_memory([&] { throw error; });
  } catch (const MemoryLimitExceeded& ours) {
    return ours.what();
  }
  return "nothing";
}

TEST(WithinMemory, MakesOneKindOfFailureOfAll) {
  EXPECT_EQ(rethrown_text(MemoryLimitExceeded("4 MiB too many")), "4 MiB too many");
  EXPECT_THAT(rethrown_text(c10::OutOfMemoryError({__func__, __FILE__, 1}, "the device is full")), testing::HasSubstr("the device is full"));
  EXPECT_EQ(rethrown_text(std::bad_alloc()), "the machine has no more memory");
}

TEST(WithinMemory, LeavesOtherFailuresAndResultsAsTheyAre) {
  EXPECT_THROW(within_memory([] { throw UserError("a mistake"); }), UserError);
  int value = 3;
  EXPECT_EQ(within_memory([&] { return value; }), 3);
  within_memory([&]() -> int& { return value; }) = 4;
  EXPECT_EQ(value, 4);
}

}  // namespace
}  // namespace cotune
