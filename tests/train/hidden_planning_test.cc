// Planning behind rounds that are held until it is over (LobRA §4.3, LB-19): what is left of it to wait for.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "engine/rank_threads.h"
#include "train/first_usage.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

/// The threads of this process.
std::set<std::string> threads_alive() {
  std::set<std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) threads.insert(entry.path().filename());
  return threads;
}

/// Ranks whose rounds take until the threads have ended that were started since the rounds before: those that plan the next ones, which no
/// observer sees.
class RanksThatWaitForPlanning : public RankThreads {
 public:
  using RankThreads::RankThreads;
  using RankThreads::run;
  void run(const ReplicaPlans& plans, std::span<JobRound> rounds) override {
    std::set<std::string> started;
    for (const std::string& thread : threads_alive()) {
      if (!known_.contains(thread)) started.insert(thread);
    }
    seen_ += started.empty() ? 0 : 1;
    RankThreads::run(plans, rounds);
    const auto is_alive = [&] {
      const std::set<std::string> alive = threads_alive();
      return std::ranges::any_of(started, [&](const std::string& thread) { return alive.contains(thread); });
    };
    // One that goes on for so long is a helper of computation, and known from now on.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (is_alive() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    known_ = threads_alive();
  }
  int64_t seen() const { return seen_; }

 private:
  std::set<std::string> known_ = threads_alive();
  int64_t seen_ = 0;  ///< rounds behind which something was planned, and was not over before they began
};

TEST(RunOnRanks, ExposesLittleOfThePlanningThatIsOverBeforeTheRoundsAre) {
  std::vector<JobSpec> specs;
  for (uint64_t i = 0; i < 6; ++i) specs.push_back(small_job("job" + std::to_string(i), AdapterMethod::lora, i, 16));
  for (JobSpec& spec : specs) spec.train.batch_size = 24;
  SmallRun run("held");
  TrainerOptions options;
  options.ranks = 2;
  options.policy.token_budget = 256;  // many microbatches, so that planning takes a while
  options.rounds_at_once = 4;
  const PipelineLayout layout{.stages = {{0, 1, true, false}, {1, 2, false, true}}, .stage_rank = {0, 1}};
  const auto ranks = std::make_shared<RanksThatWaitForPlanning>(run.backbone, layout, 1);
  options.rank_group = ranks;
  FirstUsage usage;
  options.observers = {&usage};
  const RunSummary summary = run.trainer(specs, options)->run();
  EXPECT_EQ(summary.rounds, 16);
  EXPECT_GT(ranks->seen(), 0);
  EXPECT_GE(summary.rounds_planned_ahead, 12) << "all but the first, which nothing runs before";
  ASSERT_TRUE(usage.first);
  const double later_s = summary.planning_seconds - usage.first->planning_seconds.value();
  const double exposed_s = summary.planning_exposed_seconds - usage.first->planning_exposed_seconds.value();
  EXPECT_GT(later_s, 0);
  EXPECT_LT(exposed_s, 0.05 * later_s);
}

}  // namespace
}  // namespace cotune::testing
