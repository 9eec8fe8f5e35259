#include "cli/run/hung_ranks.h"

#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>
#include <string>
#include <thread>

namespace cotune {
namespace {

template <typename Error>
void end_by(const std::string& words) {
  tell_of_broken_links("rank 1 on here");
  std::thread([&] { throw Error(words); }).join();
}

TEST(BrokenLinksDeathTest, EndTheProcessWithItsRankAndTheReason) {
  const std::string words = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:339] writev [10.77.2.1]:17539: Software caused connection abort";
  EXPECT_EXIT(end_by<std::runtime_error>(words), ::testing::ExitedWithCode(1),
              "^rank 1 on here: a link to another rank has broken: writev \\[10.77.2.1\\]:17539: Software caused connection abort\n$");
}

TEST(BrokenLinksDeathTest, AnErrorOfOursEndsItAsBefore) {
  EXPECT_EXIT(end_by<std::logic_error>("no such layer"), ::testing::KilledBySignal(SIGABRT), "no such layer");
}

}  // namespace
}  // namespace cotune
