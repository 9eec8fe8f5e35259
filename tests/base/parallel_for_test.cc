#include "base/parallel_for.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

namespace cotune {
namespace {

TEST(ForEachAtOnce, TakesEveryIndexOnceWhateverTheThreads) {
  for (const size_t count : {0U, 1U, 3U, 100U}) {
    for (const int64_t threads : {-1, 0, 1, 2, 7}) {
      std::vector<std::atomic<int>> taken(count);
      parallel_for(count, threads, [&](size_t index) { ++taken[index]; });
      for (const std::atomic<int>& each : taken) EXPECT_EQ(each.load(), 1);
    }
  }
}

TEST(ForEachAtOnce, HasSoManyUnderWayAtATime) {
  std::atomic<int> under_way = 0;
  parallel_for(3, 3, [&](size_t) {
    ++under_way;
    while (under_way < 3) std::this_thread::yield();
  });
  EXPECT_EQ(under_way.load(), 3);
}

TEST(ForEachAtOnce, EndsAllBeforeItThrowsWhatTheFirstOfThemThrew) {
  std::atomic<int> done = 0;
  try {
    parallel_for(8, 2, [&](size_t index) {
      if (index == 2 || index == 5) throw std::runtime_error(std::to_string(index));
      ++done;
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "2");
  }
  EXPECT_EQ(done.load(), 6);
}

}  // namespace
}  // namespace cotune
