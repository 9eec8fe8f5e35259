#include "engine/rank_links.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "engine/process_ranks.h"

namespace cotune::testing {
namespace {

TEST(RankLinks, EndTogether) {
  ThreadGroups groups(2, {});
  std::atomic<bool> is_late = false;
  const auto end_as = [&](int32_t rank) {
    RankLinks links = groups.links(rank);
    links.end_within = std::chrono::minutes(1);
    links.at_late_end = [&] { is_late = true; };
    links.end();
  };
  std::thread other(end_as, 1);
  end_as(0);
  other.join();
  EXPECT_FALSE(is_late);
}

/// Its host was suspended, or its link has dropped without a word: all has been done, and nobody watches any more.
TEST(RankLinks, AreLeftWhereAnotherRankIsSilentAtTheEnd) {
  ThreadGroups groups(2, {});
  const RankLinks silent = groups.links(1);
  RankLinks links = groups.links(0);
  links.end_within = std::chrono::milliseconds(200);
  bool is_late = false;
  links.at_late_end = [&] { is_late = true; };
  links.end();
  EXPECT_TRUE(is_late);
}

}  // namespace
}  // namespace cotune::testing
