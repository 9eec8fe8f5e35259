// A group of threads on a machine that has too few.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"
#include "comm/communicator.h"

namespace cotune {
namespace {

/// While it lives the process gets no more than so many bytes of addresses: room for the stacks of some threads. (A limit on threads
/// themselves does not bind root.)
class AddressLimit {
 public:
  explicit AddressLimit(rlim_t further_bytes) {
    rlim_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    ::getrlimit(RLIMIT_AS, &before_);
    rlimit limit = before_;
    limit.rlim_cur = pages * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + further_bytes;
    is_set_ = pages > 0 && ::setrlimit(RLIMIT_AS, &limit) == 0;
  }
  ~AddressLimit() {
    if (is_set_) ::setrlimit(RLIMIT_AS, &before_);
  }
  AddressLimit(const AddressLimit&) = delete;
  AddressLimit& operator=(const AddressLimit&) = delete;
  bool is_set() const { return is_set_; }

 private:
  rlimit before_{};
  bool is_set_ = false;
};

bool are_refused(int count) {
  std::vector<std::jthread> threads;
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([](const std::stop_token& stop) {
      while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    });
  } catch (const std::system_error&) {
    return true;
  }
  return false;
}

TEST(RefusedThreads, AreASystemErrorAtOnceThoughSomeWereGranted) {
  constexpr int32_t size = 300;
  std::string message;
  const auto begin = std::chrono::steady_clock::now();
  {
    const AddressLimit limit(rlim_t{64} << 20);
    if (!limit.is_set() || !are_refused(size)) GTEST_SKIP() << "addresses cannot be limited here";
    try {
      thread_communicators(size);
    } catch (const SystemError& error) {
      message = error.what();
    } catch (const std::exception& error) {
      message = std::string("no SystemError: ") + error.what();
    }
  }
  EXPECT_THAT(message, ::testing::StartsWith("a thread for each of 300 ranks cannot be had: "));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << "it waited for ranks that have no thread";
  EXPECT_EQ(thread_communicators(2).size(), 2u) << "once there are threads again";
}

}  // namespace
}  // namespace cotune
