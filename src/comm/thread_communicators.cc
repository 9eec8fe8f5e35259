#define USE_DISTRIBUTED
#include <exception>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "base/error.h"
#include "comm/gloo_communicator.h"

namespace cotune {

std::vector<std::unique_ptr<Communicator>> thread_communicators(int32_t size) {
  COTUNE_CHECK(size >= 1, "{} ranks", size);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::unique_ptr<Communicator>> ranks(size);
  std::vector<std::exception_ptr> failures(size);
  {
    std::vector<std::jthread> threads;  // each rank waits for the others to join
    for (int32_t rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          ranks[rank] = gloo_communicator(store, rank, size, "127.0.0.1");
        } catch (...) {
          failures[rank] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return ranks;
}

}  // namespace cotune
