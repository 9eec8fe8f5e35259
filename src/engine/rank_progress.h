#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "schedule/action.h"

namespace cotune {

/// How far a rank is, for those who watch it (rank_watch.h). The rank's own thread writes, any thread reads.
class RankProgress {
 public:
  struct State {
    int64_t count = 0;            ///< grows with everything that the rank begins or ends
    bool running = false;         ///< a plan's actions, and not between runs
    Action action;                ///< at hand, where it runs
    int32_t waits_for = -1;       ///< the rank whose message it waits for; -1: it computes
    double longest_action_s = 0;  ///< that is predicted of this run
  };

  void begin_run(double longest_action_s) {
    change([&](State& state) { state = {state.count, true, {}, -1, longest_action_s}; });
  }
  void begin(const Action& action) {
    change([&](State& state) { state.action = action; });
  }
  void wait_for(int32_t peer) {
    change([&](State& state) { state.waits_for = peer; });
  }
  void go_on() {
    change([](State& state) { state.waits_for = -1; });
  }
  void end_run() {
    change([](State& state) { state.running = false; });
  }

  State state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }

 private:
  template <typename Change>
  void change(Change apply) {
    const std::lock_guard lock(mutex_);
    apply(state_);
    ++state_.count;
  }

  mutable std::mutex mutex_;
  State state_;
};

}  // namespace cotune
