#include "base/end_wishes.h"

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

std::vector<EndWish> wishes_of(const Signals& signals) {
  EndWishes wishes;
  std::vector<EndWish> taken;
  for (const auto& [number, is_passed_on] : signals) taken.push_back(wishes.take(number, is_passed_on));
  return taken;
}

TEST(EndWishes, ASecondSignalIsARepeatedWish) {
  const std::vector<EndWish> twice = {EndWish::first, EndWish::repeated};
  EXPECT_EQ(wishes_of({{SIGINT, false}, {SIGINT, false}}), twice);
  EXPECT_EQ(wishes_of({{SIGINT, false}, {SIGTERM, false}}), twice);
  EXPECT_EQ(wishes_of({{SIGTERM, true}, {SIGTERM, true}}), twice);
}

TEST(EndWishes, AHangUpBesideATerminationIsTheSameWishInEitherOrder) {
  const std::vector<EndWish> once = {EndWish::first, EndWish::known};
  EXPECT_EQ(wishes_of({{SIGTERM, false}, {SIGHUP, false}}), once);
  EXPECT_EQ(wishes_of({{SIGHUP, false}, {SIGTERM, false}}), once);
  EXPECT_EQ(wishes_of({{SIGHUP, false}, {SIGHUP, false}}), once);
  EXPECT_EQ(wishes_of({{SIGHUP, false}, {SIGTERM, false}, {SIGTERM, false}}).back(), EndWish::repeated);
}

TEST(EndWishes, WhatTheParentPassesOnIsNoWishOfItsOwn) {
  const std::vector<EndWish> once = {EndWish::first, EndWish::known};
  EXPECT_EQ(wishes_of({{SIGINT, false}, {SIGINT, true}}), once);
  EXPECT_EQ(wishes_of({{SIGINT, true}, {SIGINT, false}}), once);
  EXPECT_EQ(wishes_of({{SIGTERM, false}, {SIGHUP, true}, {SIGTERM, true}}).back(), EndWish::known);
  EXPECT_EQ(wishes_of({{SIGINT, true}, {SIGINT, false}, {SIGINT, false}}).back(), EndWish::repeated);
}

TEST(EndWishes, ForgottenWishesAreFirstAgain) {
  EndWishes wishes;
  wishes.take(SIGINT);
  wishes.forget();
  EXPECT_EQ(wishes.take(SIGINT), EndWish::first);
}

TEST(EndWishes, SignalsOfOneSessionThatComeToSeveralThreadsAreOneWish) {
  const Signals session = {{SIGTERM, false}, {SIGHUP, false}, {SIGTERM, true}, {SIGHUP, true}};
  for (int round = 0; round < 200; ++round) {
    EndWishes wishes;
    std::vector<EndWish> taken(session.size());
    std::latch start(std::ssize(session));
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < session.size(); ++i) {
      threads.emplace_back([&, i] {
        start.arrive_and_wait();
        taken[i] = wishes.take(session[i].first, session[i].second);
      });
    }
    threads.clear();
    EXPECT_EQ(std::count(taken.begin(), taken.end(), EndWish::first), 1);
    EXPECT_EQ(std::count(taken.begin(), taken.end(), EndWish::known), 3);
  }
}

}  // namespace
}  // namespace cotune
