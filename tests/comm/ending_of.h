#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <future>
#include <string>

#include "comm/communicator.h"

namespace cotune {

/// What CommunicationEnded says when work throws it; fails where it does not, or not within a minute.
inline std::string ending_of(const std::function<void()>& work) {
  auto ending = std::async(std::launch::async, [&]() -> std::string {
    try {
      work();
    } catch (const CommunicationEnded& ended) {
      return ended.what();
    }
    return "no end";
  });
  if (ending.wait_for(std::chrono::minutes(1)) != std::future_status::ready) {
    ADD_FAILURE() << "still waiting";
    std::abort();
  }
  return ending.get();
}

}  // namespace cotune
