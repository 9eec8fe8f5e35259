#include "base/stop_requests.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <latch>
#include <thread>
#include <utility>
#include <vector>

namespace cotune {
namespace {

using Signals = std::vector<std::pair<int, bool>>;  // the number, and whether the parent passed it on

std::vector<StopRequest> wishes_of(const Signals& signals) {
  StopRequests wishes;
  std::vector<StopRequest> taken;
  for (const auto& [number, is_passed_on] : signals) taken.push_back(wishes.take(number, is_passed_on));
  return taken;
}

TEST(StopRequests, ASecondSignalIsARepeatedWish) {
  const std::vector<StopRequest> twice = {StopRequest::first, StopRequest::repeated};
  EXPECT_EQ(wishes_of({{SIGINT, false}, {SIGINT, false}}), twice);
  EXPECT_EQ(wishes_of({{SIGINT, false}, {SIGTERM, false}}), twice);
  EXPECT_EQ(wishes_of({{SIGTERM, true}, {SIGTERM, true}}), twice);
}

TEST(StopRequests, AHangUpBesideATerminationIsTheSameWishInEitherOrder) {
  const std::vector<StopRequest> once = {StopRequest::first, StopRequest::known};
  EXPECT_EQ(wishes_of({{SIGTERM, false}, {SIGHUP, false}}), once);
  EXPECT_EQ(wishes_of({{SIGHUP, false}, {SIGTERM, false}}), once);
  EXPECT_EQ(wishes_of({{SIGHUP, false}, {SIGHUP, false}}), once);
  EXPECT_EQ(wishes_of({{SIGHUP, false}, {SIGTERM, false}, {SIGTERM, false}}).back(), StopRequest::repeated);
}

TEST(StopRequests, WhatTheParentPassesOnIsNoWishOfItsOwn) {
  const std::vector<StopRequest> once = {StopRequest::first, StopRequest::known};
  EXPECT_EQ(wishes_of({{SIGINT, false}, {SIGINT, true}}), once);
  EXPECT_EQ(wishes_of({{SIGINT, true}, {SIGINT, false}}), once);
  EXPECT_EQ(wishes_of({{SIGTERM, false}, {SIGHUP, true}, {SIGTERM, true}}).back(), StopRequest::known);
  EXPECT_EQ(wishes_of({{SIGINT, true}, {SIGINT, false}, {SIGINT, false}}).back(), StopRequest::repeated);
}

TEST(StopRequests, ForgottenWishesAreFirstAgain) {
  StopRequests wishes;
  wishes.take(SIGINT);
  wishes.forget();
  EXPECT_EQ(wishes.take(SIGINT), StopRequest::first);
}

TEST(StopRequests, SignalsOfOneSessionThatComeToSeveralThreadsAreOneWish) {
  const Signals session = {{SIGTERM, false}, {SIGHUP, false}, {SIGTERM, true}, {SIGHUP, true}};
  for (int round = 0; round < 200; ++round) {
    StopRequests wishes;
    std::vector<StopRequest> taken(session.size());
    std::latch start(std::ssize(session));
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < session.size(); ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        taken[i] = wishes.take(session[i].first, session[i].second);
      });
    }
    threads.clear();
    EXPECT_EQ(std::count(taken.begin(), taken.end(), StopRequest::first), 1);
    EXPECT_EQ(std::count(taken.begin(), taken.end(), StopRequest::known), 3);
  }
}

}  // namespace
}  // namespace cotune
