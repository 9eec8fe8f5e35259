#include "ops/threads.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <omp.h>

#include <thread>

#include "base/process_cores.h"

namespace cotune {
namespace {

TEST(ThreadCount, LastsWhenAThreadComesToAtenForTheFirstTime) {
  const int before = at::get_num_threads(), more = omp_get_num_procs() + 3;
  set_thread_count(more);
  int of_kernels = 0, of_aten = 0;
  std::thread([&] {
    at::ones({1 << 16}).sum();
    of_kernels = omp_get_max_threads();
    of_aten = at::get_num_threads();
  }).join();
  EXPECT_EQ(of_kernels, more);
  EXPECT_EQ(of_aten, more);
  EXPECT_EQ(omp_get_max_threads(), more);
  set_thread_count(before);
}

TEST(ThreadCount, IsOfNoUseBeyondEightForEachCore) {
  const auto cores = static_cast<int64_t>(cores_of_this_process().size());
  ASSERT_GT(cores, 0);
  EXPECT_EQ(usable_thread_count(0), 0);
  EXPECT_EQ(usable_thread_count(3 * cores + 2), 3 * cores + 2);
  EXPECT_EQ(usable_thread_count(8 * cores), 8 * cores);
  EXPECT_EQ(usable_thread_count(8 * cores + 1), 8 * cores);
}

}  // namespace
}  // namespace cotune
