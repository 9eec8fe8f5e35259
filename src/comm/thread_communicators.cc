#define USE_DISTRIBUTED
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <exception>
#include <latch>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "comm/failure_text.h"
#include "comm/gloo_communicator.h"

namespace cotune {

std::vector<std::unique_ptr<Communicator>> thread_communicators(int32_t size) {
  COTUNE_CHECK(size >= 1, "{} ranks", size);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  // Long for a busy machine; short where one rank fails and the others wait for it.
  const auto joining_time = std::chrono::minutes(1);
  std::vector<std::unique_ptr<Communicator>> ranks(size);
  std::vector<std::string> failures(size);
  // Each rank waits for the others to join: so none begins before there is a thread for all.
  std::latch decided(1);
  bool all_join = false;
  const auto join = [&](int32_t rank) {
    decided.wait();
    if (!all_join) return;
    try {
      ranks[rank] = gloo_communicator(store, rank, size, "127.0.0.1", joining_time);
    } catch (const std::exception& error) {
      failures[rank] = failure_text(error);
    }
  };
  {
    std::vector<std::jthread> threads;
    try {
      for (int32_t rank = 0; rank < size; ++rank) threads.emplace_back(join, rank);
    } catch (const std::system_error& error) {
      decided.count_down();
      throw SystemError(fmt::format("a thread for each of {} ranks cannot be had: {}", size, error.what()));
    } catch (...) {
      decided.count_down();
      throw;
    }
    all_join = true;
    decided.count_down();
  }
  for (int32_t rank = 0; rank < size; ++rank) {
    if (!ranks[rank]) {
      throw SystemError(fmt::format("rank {} of {} cannot join over 127.0.0.1: {}", rank, size, failures[rank]));
    }
  }
  return ranks;
}

}  // namespace cotune
