#pragma once

#include <thread>

#include "comm/communicator.h"

namespace cotune {

/// Runs work(communicator) of every rank in a thread of its own, and returns when all have ended.
template <typename Work>
void on_every_rank(std::vector<std::unique_ptr<Communicator>>& ranks, Work work) {
  std::vector<std::jthread> threads;
  for (auto& rank : ranks) threads.emplace_back([&rank, &work] { work(*rank); });
}

}  // namespace cotune
