/// Finds ranks that are gone or hang, and ends this process's part of the run then.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/notice_board.h"
#include "engine/rank_progress.h"

namespace cotune {

/// What a rank has told of itself, and when that was seen to change.
struct SeenRank {
  using Time = std::chrono::steady_clock::time_point;
  std::string text;         ///< the last report
  Time changed;             ///< when it was another one before: the process lives
  RankProgress::State state;
  Time advanced;            ///< when state.count was another one before

  /// Its state at `now`.
  void see(const RankProgress::State& seen, Time now) {
    if (seen.count != state.count) advanced = now;
    state = seen;
  }
};

/// Whether who looks every look_interval did not run for a while itself (a suspended machine): then others may not have run either.
bool was_away(SeenRank::Time last_look, SeenRank::Time now, double hang_timeout_s);

/// Seconds without progress after which an action counts as hung: max(hang_timeout_s, 10 · what it was predicted to take).
double allowed_seconds(const RankProgress::State& state, double hang_timeout_s);

/// Seconds after which a task between runs counts as hung: max(an hour, 10 · hang_timeout_s).
double allowed_task_seconds(double hang_timeout_s);

/// How often a rank tells how far it is, and looks at the others: every second, or ten times in hang_timeout_s where that is oftener. A report
/// is then seen long before its rank counts as silent.
std::chrono::milliseconds look_interval(double hang_timeout_s);

/// What is wrong with the ranks at `now`, if anything: the rank, its host, its action and its peer.
///   a process that has told nothing for hang_timeout_s; its action is the last it told of
///   a rank that computes one action for longer than it is allowed
///   a rank that is at one task between runs for longer than it is allowed (RankTask)
///   all that are in a run wait for messages, for longer than any is allowed
/// A rank that waits while another one computes is well, however long, and so is one that has nothing to do.
std::optional<std::string> find_hung_rank(const std::vector<SeenRank>& ranks, const std::vector<std::string>& hosts,
                                          SeenRank::Time now, double hang_timeout_s);

/// Threads of each rank's process: one tells once an interval how far the rank is and reads what the others tell, the other looks for
/// ranks that hang, and for a master that does not answer. Nobody is blamed for a time in which this process did not run itself.
class RankWatch {
 public:
  struct Settings {
    int32_t rank = 0;
    std::vector<std::string> hosts;  ///< of all ranks
    double hang_timeout_s = 30;
    std::chrono::milliseconds interval = look_interval(hang_timeout_s);
    std::function<void()> at_look;  ///< called at every look, on the watch's thread; may be empty
  };
  /// end: called once, on the watch's thread, with what is wrong.
  RankWatch(Settings settings, std::unique_ptr<NoticeBoard> board, std::shared_ptr<const RankProgress> progress,
            std::function<void(const std::string&)> end);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;
  RankWatch& operator=(const RankWatch&) = delete;

  /// From any thread: the link to a rank has closed.
  void link_closed(int32_t peer);

  /// Until `end` has been called, or a moment: for who has lost a rank and would say less of it.
  void wait_for_end(std::chrono::milliseconds moment);

  /// The run is over: whoever leaves from now on may.
  void stand_down();

 private:
  struct Notices;

  void work();
  std::optional<std::string> look();
  void forgive_own_absence();
  void tell_all(const std::string& trouble);
  void see(const std::vector<std::string>& texts);

  Settings settings_;
  std::shared_ptr<Notices> notices_;  ///< shared with the thread that a master may hold up for ever
  std::function<void(const std::string&)> end_;
  std::vector<SeenRank> seen_;
  SeenRank::Time last_look_ = std::chrono::steady_clock::now();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<int32_t> closed_;
  bool over_ = false, has_ended_ = false;
  std::thread thread_, exchanging_;
};

}  // namespace cotune
