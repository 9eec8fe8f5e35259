/// Finds ranks that hang where they are threads of one process.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/rank_progress.h"

namespace cotune {

/// A thread that looks at how far every rank is, by the rules of find_hung_rank (rank_watch.h).
class ThreadWatch {
 public:
  /// of_ranks: in the order of the ranks. host: of all of them, for messages. end: called once, on the watch's thread, with what is wrong;
  /// a rank that hangs never comes back, so it ends the process.
  ThreadWatch(std::vector<std::shared_ptr<const RankProgress>> of_ranks, std::string host, double hang_timeout_s,
              std::function<void(const std::string&)> end);
  ~ThreadWatch();
  ThreadWatch(const ThreadWatch&) = delete;
  ThreadWatch& operator=(const ThreadWatch&) = delete;

 private:
  void work();

  std::vector<std::shared_ptr<const RankProgress>> of_ranks_;
  std::vector<std::string> hosts_;
  double hang_timeout_s_;
  std::function<void(const std::string&)> end_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace cotune
