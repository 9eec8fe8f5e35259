#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "schedule/action.h"

namespace cotune {

/// How far a rank is, for those who watch it (rank_watch.h). The rank's own thread writes, any thread reads.
class RankProgress {
 public:
  struct State {
    int64_t count = 0;            ///< grows with everything that the rank begins or ends
    bool running = false;         ///< a plan's actions, and not between runs
    Action action;                ///< at hand, where it runs
    std::vector<int32_t> waits_for;  ///< ranks whose message or summand it waits for; none: it computes
    double action_s = 0;          ///< that this action is predicted to take
    std::string task;             ///< between runs: what it does then; "": it waits for something to do
  };

  /// pipeline, group: the run's ranks behind those of the pipeline, and those that divide its layers, itself among both.
  void join(std::vector<int32_t> pipeline, std::vector<int32_t> group) {
    const std::lock_guard lock(mutex_);
    pipeline_ = std::move(pipeline);
    group_ = std::move(group);
  }

  /// What it has to do is still being told.
  void begin_run() {
    change([](State& state) { state = {state.count, true, {}, {}, 0, {}}; });
  }
  /// What the actions of its list are predicted to take, by their places in it.
  void expect(std::vector<double> action_s) {
    const std::lock_guard lock(mutex_);
    action_s_ = std::move(action_s);
  }
  /// place: of the action in the list.
  void begin(const Action& action, size_t place) {
    change([&](State& state) {
      state.action = action;
      state.action_s = action_s_.at(place);
    });
  }
  /// For a peer in the pipeline, or for all that divide its layers.
  void wait_for(int32_t peer) {
    change([&](State& state) { state.waits_for = {pipeline_.at(static_cast<size_t>(peer))}; });
  }
  void wait_for_group() {
    change([&](State& state) { state.waits_for = group_; });
  }
  /// For what these ranks know of the gradients.
  void wait_for_ranks(std::vector<int32_t> ranks) {
    change([&](State& state) { state.waits_for = std::move(ranks); });
  }
  /// Something else of this rank has gone on meanwhile: an exchange of gradients.
  void advance() {
    change([](State&) {});
  }
  void go_on() {
    change([](State& state) { state.waits_for.clear(); });
  }
  void end_run() {
    change([](State& state) { state.running = false; });
  }
  /// Returns the task that it was at before: RankTask.
  std::string take_up(std::string task) {
    change([&](State& state) { state.task.swap(task); });
    return task;
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
  std::vector<double> action_s_;
  std::vector<int32_t> pipeline_, group_;
};

/// What a rank does before runs and between them that may hang, from here to the end of the scope: reads or writes files, or moves adapters.
class RankTask {
 public:
  /// progress: may be nullptr. text: `writing the checkpoint of job \`a\``.
  RankTask(RankProgress* progress, std::string text) : progress_(progress) {
    if (progress_ != nullptr) before_ = progress_->take_up(std::move(text));
  }
  ~RankTask() {
    if (progress_ != nullptr) progress_->take_up(std::move(before_));
  }
  RankTask(RankTask&& other) noexcept : progress_(std::exchange(other.progress_, nullptr)), before_(std::move(other.before_)) {}
  RankTask(const RankTask&) = delete;
  RankTask& operator=(const RankTask&) = delete;

 private:
  RankProgress* progress_;
  std::string before_;
};

}  // namespace cotune
