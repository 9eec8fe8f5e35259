#include "engine/thread_watch.h"

#include <algorithm>
#include <utility>

#include "engine/rank_watch.h"

namespace cotune {

ThreadWatch::ThreadWatch(std::vector<std::shared_ptr<const RankProgress>> of_ranks, std::string host, double hang_timeout_s,
                         std::function<void(const std::string&)> end)
    : of_ranks_(std::move(of_ranks)), hosts_(of_ranks_.size(), std::move(host)), hang_timeout_s_(hang_timeout_s), end_(std::move(end)) {
  thread_ = std::thread([this] { work(); });
}

ThreadWatch::~ThreadWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void ThreadWatch::work() {
  SeenRank::Time last_look = std::chrono::steady_clock::now();
  std::vector<SeenRank> seen(of_ranks_.size(), {.text = {}, .changed = last_look, .state = {}, .advanced = last_look});
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, look_interval(hang_timeout_s_), [this] { return over_; })) {
    const SeenRank::Time now = std::chrono::steady_clock::now();
    const bool is_back = was_away(std::exchange(last_look, now), now, hang_timeout_s_);
    for (size_t rank = 0; rank < seen.size(); ++rank) {
      seen[rank].changed = now;  // threads of this process live as long as it does
      if (is_back) seen[rank].advanced = now;
      seen[rank].see(of_ranks_[rank]->state(), now);
    }
    const std::optional<std::string> trouble = find_hung_rank(seen, hosts_, now, hang_timeout_s_);
    if (!trouble) continue;
    lock.unlock();
    end_(*trouble);
    return;
  }
}

}  // namespace cotune
