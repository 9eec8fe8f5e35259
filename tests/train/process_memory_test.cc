#include "train/process_memory.h"

#include <gtest/gtest.h>

#include <vector>

#include "ops/memory.h"

namespace cotune::testing {
namespace {

constexpr int64_t mib = int64_t{1} << 20;

std::vector<char> on_the_heap(int64_t bytes) { return std::vector<char>(static_cast<size_t>(bytes), 1); }

TEST(TensorLimit, StaysWhatJobsWereAdmittedByWhileTheRestOfTheProcessGrowsAsForeseen) {
  install_counting_allocator();
  TensorLimit limit(resident_bytes() + 1024 * mib, {});
  const int64_t admitted_by = limit.apply();
  EXPECT_GT(admitted_by, 800 * mib);
  const std::vector<char> foreseen = on_the_heap(40 * mib);
  EXPECT_EQ(limit.apply(), admitted_by);
  {
    const std::vector<char> more = on_the_heap(200 * mib);
    EXPECT_LT(limit.apply(), admitted_by - 150 * mib);
    EXPECT_GT(limit.apply(), admitted_by - 240 * mib);
  }
  EXPECT_LT(limit.apply(), admitted_by - 150 * mib) << "what the heap took once it may take again";
  limit.set(0);
}

}  // namespace
}  // namespace cotune::testing
