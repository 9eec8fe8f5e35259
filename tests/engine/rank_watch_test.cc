#include "engine/rank_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <mutex>
#include <thread>

#include "comm/communicator.h"

namespace cotune {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

const std::vector<std::string> hosts{"ant", "bee"};

class HungRanks : public ::testing::Test {
 protected:
  static SeenRank seen(double heard_s_ago, double advanced_s_ago, RankProgress::State state) {
    const auto ago = [](double s) { return now - std::chrono::duration_cast<SeenRank::Time::duration>(std::chrono::duration<double>(s)); };
    return {.text = "report", .changed = ago(heard_s_ago), .state = std::move(state), .advanced = ago(advanced_s_ago)};
  }
  static RankProgress::State computing(double action_s = 0) {
    return {.running = true, .action = {.kind = ActionKind::forward, .microbatch = 3, .stage = 1}, .action_s = action_s};
  }
  static RankProgress::State waiting_for(int32_t peer) {
    RankProgress::State state = computing();
    state.waits_for = {peer};
    return state;
  }
  static std::string found(const std::vector<SeenRank>& ranks) { return find_hung_rank(ranks, hosts, now, 30).value_or(""); }

  static inline const SeenRank::Time now{seconds(100000)};
};

TEST_F(HungRanks, AreNoneWhileAnyOfThemGoesOn) {
  EXPECT_EQ(found({seen(1, 5, computing()), seen(1, 5, waiting_for(0))}), "");
  EXPECT_EQ(found({seen(1, 25, computing()), seen(1, 5000, waiting_for(0))}), "");
  EXPECT_EQ(found({seen(1, 5000, {}), seen(1, 5000, {})}), "");  // nobody has anything to do: jobs are waited for
  EXPECT_EQ(found({}), "");
}

TEST_F(HungRanks, AreNamedWithTheirActionWhenItTakesTooLong) {
  EXPECT_EQ(found({seen(1, 31, waiting_for(1)), seen(1, 31, computing())}),
            "rank 1 on bee hangs: forward of microbatch 3 on stage 1 has taken 31 s");
  // Ten times as long as the action was predicted to take.
  EXPECT_EQ(found({seen(1, 99, waiting_for(1)), seen(1, 99, computing(10))}), "");
  EXPECT_THAT(found({seen(1, 99, waiting_for(1)), seen(1, 101, computing(10))}), HasSubstr("rank 1 on bee hangs"));
}

TEST_F(HungRanks, AreAllowedTheTimeOfTheActionAtHandAndOfNoOther) {
  RankProgress progress;
  progress.begin_run();
  EXPECT_EQ(allowed_seconds(progress.state(), 30), 30) << "while its work is told";
  progress.expect({100, 2, 7});
  const std::vector<double> allowed{1000, 30, 70};
  for (size_t place = 0; place < allowed.size(); ++place) {
    progress.begin({.kind = ActionKind::forward, .microbatch = static_cast<int32_t>(place)}, place);
    EXPECT_EQ(allowed_seconds(progress.state(), 30), allowed[place]);
  }
  progress.begin({.kind = ActionKind::forward, .microbatch = 3, .stage = 1}, 1);
  EXPECT_THAT(found({seen(1, 31, progress.state())}), HasSubstr("rank 0 on ant hangs")) << "beside a longer action";
  progress.begin_run();
  EXPECT_EQ(allowed_seconds(progress.state(), 30), 30) << "of the run before";
}

TEST_F(HungRanks, AreNamedWithTheirTaskBetweenRunsWhenItTakesTooLong) {
  const RankProgress::State writing{.task = "writing the checkpoint of job `a`"}, gathering{.task = "gathering the adapter of job 0"};
  EXPECT_EQ(found({seen(1, 3599, writing), seen(1, 5000, {})}), "");
  EXPECT_EQ(found({seen(1, 3601, writing), seen(1, 5000, {})}), "rank 0 on ant hangs: writing the checkpoint of job `a` has taken 3601 s");
  EXPECT_EQ(found({seen(1, 3601, gathering), seen(1, 3599, gathering)}),
            "rank 0 on ant hangs: gathering the adapter of job 0 has taken 3601 s; rank 1 on bee has been gathering the adapter of job 0 "
            "for 3599 s");
  EXPECT_EQ(found({seen(31, 31, writing), seen(1, 1, {})}),
            "rank 0 on ant has not been heard of for 31 s; last writing the checkpoint of job `a`");
  EXPECT_EQ(allowed_task_seconds(30), 3600);
  EXPECT_EQ(allowed_task_seconds(1000), 10000);
  // Whoever is at a task goes on, for as long as it may.
  EXPECT_EQ(found({seen(1, 31, waiting_for(1)), seen(1, 31, writing)}), "");
}

TEST_F(HungRanks, AreLookedForTenTimesInTheTimeAtLeast) {
  using std::chrono::milliseconds;
  EXPECT_EQ(look_interval(1), milliseconds(100));
  EXPECT_EQ(look_interval(10), seconds(1));
  EXPECT_EQ(look_interval(86400), seconds(1));
  const RankWatch::Settings least{.rank = 0, .hosts = hosts, .hang_timeout_s = 1}, usual{};
  EXPECT_EQ(least.interval, milliseconds(100));
  EXPECT_EQ(usual.interval, seconds(1));
}

TEST_F(HungRanks, AreAtATaskUntilItsScopeEnds) {
  RankProgress progress;
  {
    const RankTask loading(&progress, "loading the adapter of job `a`");
    const int64_t count = progress.state().count;
    {
      const RankTask sharing(&progress, "sharing the adapter of job 0");
      EXPECT_EQ(progress.state().task, "sharing the adapter of job 0");
      EXPECT_GT(progress.state().count, count) << "the time of a task is that since it began";
    }
    EXPECT_EQ(progress.state().task, "loading the adapter of job `a`");
  }
  EXPECT_EQ(progress.state().task, "");
  const RankTask unwatched(nullptr, "nobody looks");
}

TEST_F(HungRanks, AreThoseThatAreSilent) {
  EXPECT_EQ(found({seen(1, 1, {}), seen(31, 31, {})}), "rank 1 on bee has not been heard of for 31 s");
  EXPECT_EQ(found({seen(1, 1, {}), seen(31, 31, computing())}),
            "rank 1 on bee has not been heard of for 31 s; last in forward of microbatch 3 on stage 1");
  EXPECT_EQ(found({seen(1, 1, {}), seen(31, 31, waiting_for(0))}),
            "rank 1 on bee has not been heard of for 31 s; it waited for rank 0 (forward of microbatch 3 on stage 1)");
}

TEST_F(HungRanks, AreAllWhereEachWaitsForAnother) {
  EXPECT_EQ(found({seen(1, 31, waiting_for(1)), seen(1, 32, waiting_for(0))}),
            "nobody goes on; there wait: rank 0 on ant for rank 1 (forward of microbatch 3 on stage 1), rank 1 on bee for "
            "rank 0 (forward of microbatch 3 on stage 1)");
  EXPECT_EQ(found({seen(1, 29, waiting_for(1)), seen(1, 32, waiting_for(0))}), "");
  // The other one has ended its part already.
  EXPECT_EQ(found({seen(1, 31, waiting_for(1)), seen(1, 32, {})}),
            "nobody goes on; there wait: rank 0 on ant for rank 1 (forward of microbatch 3 on stage 1)");
}

TEST_F(HungRanks, AreThoseForWhoseSumsTheOthersWait) {
  const std::vector<std::string> four{"ant", "ant", "bee", "bee"};
  const auto found_of = [&](const std::vector<SeenRank>& ranks) { return find_hung_rank(ranks, four, now, 30).value_or(""); };
  RankProgress progress;
  progress.join({0, 2}, {2, 3});  // of rank 2: the lower and the upper stage, and those with whom it divides the upper one
  progress.begin_run();
  progress.expect({0});
  progress.begin({.kind = ActionKind::forward, .microbatch = 3, .stage = 1}, 0);
  progress.wait_for_group();
  const RankProgress::State in_group = progress.state();
  EXPECT_EQ(found_of({seen(1, 31, waiting_for(2)), seen(1, 31, waiting_for(3)), seen(1, 31, in_group), seen(1, 31, computing())}),
            "rank 3 on bee hangs: forward of microbatch 3 on stage 1 has taken 31 s");
  progress.go_on();
  progress.wait_for(0);
  EXPECT_EQ(progress.state().waits_for, std::vector<int32_t>{0});
  EXPECT_EQ(found_of({seen(1, 31, {}), seen(1, 31, {}), seen(1, 31, in_group), seen(1, 31, progress.state())}),
            "nobody goes on; there wait: rank 2 on bee for rank 3 (forward of microbatch 3 on stage 1), rank 3 on bee for rank 0 "
            "(forward of microbatch 3 on stage 1)");
}

/// Shared by the watches of a test.
struct Notices {
  std::mutex mutex;
  std::map<std::string, std::string> texts;
  std::vector<std::string> of_rank_1;  ///< what the watch of rank 0 has read of it, read by read
  bool is_gone = false;
};

class SharedBoard : public NoticeBoard {
 public:
  SharedBoard(std::shared_ptr<Notices> notices, int32_t rank) : notices_(std::move(notices)), rank_(rank) {}
  void put(const std::string& key, const std::string& text) override {
    const std::lock_guard lock(notices_->mutex);
    if (notices_->is_gone) throw CommunicationEnded("the board is gone");
    notices_->texts[key] = text;
  }
  std::vector<std::string> read(const std::vector<std::string>& keys) override {
    const std::lock_guard lock(notices_->mutex);
    if (notices_->is_gone) throw CommunicationEnded("the board is gone");
    std::vector<std::string> texts;
    for (const std::string& key : keys) texts.push_back(notices_->texts[key]);
    if (rank_ == 0) notices_->of_rank_1.push_back(notices_->texts["rank/1"]);
    return texts;
  }

 private:
  std::shared_ptr<Notices> notices_;
  int32_t rank_ = 0;
};

/// Two ranks with a watch each, unless it says otherwise a few milliseconds a look.
class WatchedRanks : public ::testing::Test {
 protected:
  void start(double hang_timeout_s, std::chrono::milliseconds interval = std::chrono::milliseconds(5)) {
    for (int32_t rank = 0; rank < 2; ++rank) {
      progress.push_back(std::make_shared<RankProgress>());
      RankWatch::Settings settings{.rank = rank, .hosts = hosts, .hang_timeout_s = hang_timeout_s, .interval = interval};
      if (rank == 0) settings.at_look = [this] { ++looks; };
      watches.push_back(std::make_unique<RankWatch>(settings, std::make_unique<SharedBoard>(notices, rank), progress.back(),
                                                    [this, rank](const std::string& why) { ended[static_cast<size_t>(rank)].set_value(why); }));
    }
  }
  std::string end_of(size_t rank) { return ended[rank].get_future().get(); }
  /// Waits until rank 1 has told of it and the watch of rank 0 has seen that.
  void await_seen(const std::string& text) {
    const auto reads_that_had_it = [&] {
      const std::lock_guard lock(notices->mutex);
      return std::ranges::count_if(notices->of_rank_1, [&](const std::string& each) { return each.find(text) != std::string::npos; });
    };
    while (reads_that_had_it() < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // so that the first was handed over
    for (const int64_t before = looks; looks < before + 2;) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // and a look has ended
  }

  std::shared_ptr<Notices> notices = std::make_shared<Notices>();
  std::vector<std::shared_ptr<RankProgress>> progress;
  std::vector<std::promise<std::string>> ended{2};
  std::atomic<int64_t> looks{0};  ///< of the watch of rank 0
  std::vector<std::unique_ptr<RankWatch>> watches;
};

TEST_F(WatchedRanks, AllEndWithTheSameReasonWhenOneHangs) {
  start(3);
  progress[1]->begin_run();
  progress[1]->expect({0});
  progress[1]->begin({.kind = ActionKind::backward, .microbatch = 2, .stage = 1}, 0);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(end_of(rank), HasSubstr("rank 1 on bee hangs: backward of microbatch 2 on stage 1 has taken")) << rank;
  }
}

TEST_F(WatchedRanks, GoOnWhereAllIsWellWithTheLeastTimeoutThatIsAccepted) {
  start(1, look_interval(1));
  progress[1]->begin_run();
  progress[1]->expect({0});
  const auto end = std::chrono::steady_clock::now() + seconds(4);
  while (std::chrono::steady_clock::now() < end) {
    progress[1]->begin({.kind = ActionKind::forward, .stage = 1}, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  for (auto& each : ended) EXPECT_NE(each.get_future().wait_for(seconds(0)), std::future_status::ready);
}

TEST_F(WatchedRanks, EndWhenALinkHasClosed) {
  start(600);
  watches[0]->link_closed(1);
  EXPECT_EQ(end_of(0), "rank 1 on bee has left the run");
}

TEST_F(WatchedRanks, SayWhatARankWasAtWhoseLinkHasClosed) {
  start(600);
  progress[1]->begin_run();
  progress[1]->expect({0});
  progress[1]->begin({.kind = ActionKind::backward, .microbatch = 2, .stage = 1}, 0);
  await_seen("backward");
  watches[0]->link_closed(1);
  EXPECT_EQ(end_of(0), "rank 1 on bee has left the run; last in backward of microbatch 2 on stage 1");
}

TEST_F(WatchedRanks, TellTheirTasks) {
  start(600);
  const RankTask task(progress[1].get(), "writing the checkpoint of job `a`");
  await_seen("writing");
  watches[0]->link_closed(1);
  EXPECT_EQ(end_of(0), "rank 1 on bee has left the run; last writing the checkpoint of job `a`");
}

TEST_F(WatchedRanks, EndWhenAProcessIsSilent) {
  start(3);
  watches[1].reset();  // which tells nothing any more
  EXPECT_THAT(end_of(0), HasSubstr("rank 1 on bee has not been heard of for"));
}

TEST_F(WatchedRanks, EndWhenTheMasterIsGone) {
  start(600);
  {
    const std::lock_guard lock(notices->mutex);
    notices->is_gone = true;
  }
  EXPECT_EQ(end_of(0), "rank 0 on ant: the board is gone");
  EXPECT_EQ(end_of(1), "rank 0 on ant: the board is gone");
}

TEST_F(WatchedRanks, EndWhenTheMasterDoesNotAnswer) {
  const std::lock_guard lock(notices->mutex);  // whoever asks waits
  start(3);
  for (size_t rank = 0; rank < 2; ++rank) EXPECT_THAT(end_of(rank), HasSubstr("the master, with rank 0 on ant, has not answered rank")) << rank;
  // Ends although its exchange with the master never does.
  watches.clear();
}

TEST_F(WatchedRanks, MayLeaveWhenTheRunIsOver) {
  start(600);
  for (const auto& watch : watches) watch->stand_down();
  watches[0]->link_closed(1);
  watches.clear();  // joins them
  for (auto& each : ended) EXPECT_NE(each.get_future().wait_for(seconds(0)), std::future_status::ready);
}

}  // namespace
}  // namespace cotune
