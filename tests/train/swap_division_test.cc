// Ranks that are divided anew while a run goes on: what they leave is what one rank leaves, and nothing of a division stays.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <sstream>
#include <thread>

#include "base/random.h"
#include "engine/process_ranks.h"
#include "train/run_values.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TrainerOptions of_four_ranks() {
  TrainerOptions options;
  options.ranks = 4;
  options.parallel = *parse_parallel("dp=2,pp=2");
  options.rounds_at_once = 2;
  options.policy.token_budget = 256;
  options.parts[1] = small_parts(1);
  options.parts[2] = small_parts(2);
  return options;
}

PlannedDivision division(const char* degrees) { return {.parallel = *parse_parallel(degrees), .layouts = {}, .seconds = 0}; }

/// What this process has of the system's.
struct Held {
  int64_t threads = 0, descriptors = 0;
  bool operator==(const Held&) const = default;
};

Held held_now() {
  Held held;
  std::istringstream status(read_file("/proc/self/status"));
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) held.threads = std::stoll(line.substr(8));
  }
  for ([[maybe_unused]] const auto& each : std::filesystem::directory_iterator("/proc/self/fd")) ++held.descriptors;
  return held;
}

std::ostream& operator<<(std::ostream& out, const Held& held) {
  return out << held.threads << " threads, " << held.descriptors << " descriptors";
}

/// Waits until it has no more than before: a thread that has been joined may be counted a moment longer.
void expect_no_more_than(const Held& before, int64_t swaps) {
  const auto is_more = [&](const Held& held) { return held.threads > before.threads || held.descriptors > before.descriptors; };
  Held held = held_now();
  for (int i = 0; i < 200 && is_more(held); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    held = held_now();
  }
  EXPECT_FALSE(is_more(held)) << held << " after " << swaps << " swaps, before " << before;
}

TEST(SwappedDivisions, OneHundredTimesLeaveTheAdaptersOfOneRankAndNothingElse) {
  std::vector<JobSpec> specs = mixed_jobs(26);
  specs[0].train.eval_steps = 7;
  specs[1].train.save_steps = 5;
  specs[3].train.load_best = true;
  specs[3].train.eval_steps = 6;
  SmallRun one("one", at::kDouble), swapped("swapped", at::kDouble);
  TrainerOptions alone;
  alone.policy.token_budget = 256;
  one.trainer(specs, alone)->run();

  constexpr std::array degrees{"dp=2,pp=2", "pp=2,tp=2", "dp=2,tp=2",        "dp=4",          "dp=2+pp=2",
                               "dp=2+tp=2", "pp=2+tp=2", "dp=2,len=30+pp=2", "tp=2,len=35+pp=2"};
  TrainerOptions options = of_four_ranks();
  options.rounds_at_once = 1;
  size_t now = 0;
  int64_t swaps = 0, looks = 0;
  Held at_first;
  const auto swap_to = [&](Trainer& trainer, size_t to) {
    if (to == now) return;
    ASSERT_TRUE(trainer.swap_division(division(degrees[to]), "a test", "at random"));
    now = to;
    ++swaps;
  };
  options.between_rounds = [&](Trainer& trainer) {
    for (int i = 0; i < 5 && swaps < 105; ++i) {
      swap_to(trainer, (now + 1 + uniform_below(11, static_cast<uint64_t>(swaps), degrees.size() - 1)) % degrees.size());
    }
    if (looks == 2 || swaps < (looks == 0 ? 10 : 105)) return;
    swap_to(trainer, 1);
    swap_to(trainer, 0);
    if (looks++ == 0) at_first = held_now();
    EXPECT_EQ(held_now(), at_first) << "after " << swaps << " swaps";
  };
  const RunSummary summary = swapped.trainer(specs, options)->run();
  EXPECT_GE(swaps, 100);
  EXPECT_EQ(looks, 2);
  EXPECT_EQ(summary.swaps.size(), static_cast<size_t>(swaps));
  expect_equal_adapters(swapped, one, specs);
}

TEST(SwappedDivisions, GoOnWithJobsThatComePauseAndLeave) {
  const std::vector<JobSpec> specs = mixed_jobs(8);
  SmallRun one("one", at::kDouble), swapped("swapped", at::kDouble);
  TrainerOptions alone;
  alone.policy.token_budget = 256;
  one.trainer(specs, alone)->run();
  TrainerOptions options = of_four_ranks();
  options.rounds_at_once = 1;
  const std::vector<JobSpec> first{specs[0], specs[1], specs[2]};
  int64_t boundary = 0;
  options.between_rounds = [&](Trainer& trainer) {
    ++boundary;
    if (boundary == 3) trainer.swap_division(division("dp=4"), "a test", "");
    if (boundary == 4) {
      std::vector<std::unique_ptr<TrainingJob>> joining;
      joining.push_back(swapped.job(3, specs[3]));
      trainer.add_jobs(std::move(joining));
      trainer.pause_job(*trainer.jobs()[1]);
    }
    if (boundary == 5) trainer.swap_division(division("pp=2,tp=2"), "a test", "");
    if (boundary == 7) trainer.resume_job(*trainer.jobs()[1]);
    if (boundary == 12) trainer.swap_division(division("dp=2+tp=2"), "a test", "");  // some have ended
  };
  swapped.trainer(first, options)->run();
  expect_equal_adapters(swapped, one, specs);
}

/// Ranks with weights of their own, which read what they lack, and make their groups anew. Leader and followers are threads here, so what
/// this process has is what all of them have.
TEST(SwappedDivisions, OfProcessesLeaveTheAdaptersOfOneRank) {
  SKIP_ON_A_DEVICE() << "processes of this test compute on the CPU";
  const std::vector<JobSpec> specs = mixed_jobs(12);
  SmallRun one("one", at::kDouble), swapped("swapped", at::kDouble);
  TrainerOptions alone;
  alone.policy.token_budget = 256;
  one.trainer(specs, alone)->run();

  const auto divided = [](const char* degrees) {
    PlannedDivision each = division(degrees);
    for (const ReplicaDegrees& replica : each.parallel.replicas) {
      each.layouts.push_back(even_layout(small_config(), static_cast<int32_t>(replica.pipeline), 1, replica.tensor));
      each.layouts.back().shards_weights = replica.shards_weights;
    }
    return each;
  };
  const std::vector<PlannedDivision> divisions{divided("pp=2"), divided("dp=2"), divided("tp=2"), divided("dp=2,shard")};
  Processes processes(small_config(), divisions.front().layouts);
  TrainerOptions options;
  options.ranks = 2;
  options.parallel = divisions.front().parallel;
  options.policy.token_budget = 256;
  options.rounds_at_once = 2;
  options.rank_group = std::shared_ptr<RankGroup>(&processes.leader(), [](RankGroup*) {});
  constexpr int64_t swaps_at_once = 29;  // so that rounds run in every division in turn
  size_t now = 0;
  int64_t swaps = 0, first_look = 0, last_look = 0;
  Held at_first;
  options.between_rounds = [&](Trainer& trainer) {
    if (std::ranges::any_of(trainer.jobs(), [](const auto& job) { return job->is_selecting(); })) return;
    for (int64_t i = 0; i < swaps_at_once; ++i) {
      now = (now + 1) % divisions.size();
      EXPECT_TRUE(trainer.swap_division(divisions[now], "a test", ""));
      ++swaps;
      if (now != 0 || swaps <= swaps_at_once) continue;  // rounds have run in two divisions, and this is the first one again
      if (first_look == 0) {
        first_look = swaps;
        at_first = held_now();
      }
      last_look = swaps;
      expect_no_more_than(at_first, swaps);
    }
  };
  const RunSummary summary = swapped.trainer(specs, options)->run();
  EXPECT_EQ(summary.swaps.size(), static_cast<size_t>(swaps));
  EXPECT_GE(last_look - first_look, 100);
  EXPECT_EQ(summary.ranks.size(), 2u);
  expect_equal_adapters(swapped, one, specs);
  for (const std::string& why : processes.end()) EXPECT_EQ(why, "");
}

/// Tells a division's planner what to say, and hears what it was asked.
class Planner {
 public:
  explicit Planner(DivisionAnswer answer) : answer_(std::move(answer)) {}
  PlanDivision function() {
    return [this](const DivisionRequest& request) -> std::optional<DivisionAnswer> {
      asked.push_back(request);
      has_answered = true;
      return answer_;
    };
  }
  std::vector<DivisionRequest> asked;
  std::atomic<bool> has_answered = false;

 private:
  DivisionAnswer answer_;
};

class Swaps : public RunObserver {
 public:
  void on_swap(const DivisionSwap& swap) override { told.push_back(swap); }
  std::vector<DivisionSwap> told;
};

RunSummary run_with(Planner& planner, Swaps& swaps, SmallRun& run, std::vector<JobSpec> specs) {
  TrainerOptions options = of_four_ranks();
  options.plan_division = planner.function();
  options.observers = {&swaps};
  return run.trainer(specs, options)->run();
}

std::vector<JobSpec> of_which_one_leaves() {
  std::vector<JobSpec> specs = mixed_jobs(24);
  specs[0].train.steps = 2;
  return specs;
}

TEST(PlannedSwaps, AreMadeWhenAJobHasLeftAndItPays) {
  const std::vector<JobSpec> specs = of_which_one_leaves();
  SmallRun one("one", at::kDouble), swapped("swapped", at::kDouble);
  TrainerOptions alone;
  alone.policy.token_budget = 256;
  one.trainer(specs, alone)->run();
  Planner planner({.best = {.parallel = *parse_parallel("dp=4"), .layouts = {}, .seconds = 1}, .kept_seconds = 1e6});
  Swaps swaps;
  const RunSummary summary = run_with(planner, swaps, swapped, specs);
  expect_equal_adapters(swapped, one, specs);
  ASSERT_FALSE(planner.asked.empty());
  const DivisionRequest& asked = planner.asked.front();
  EXPECT_EQ(asked.jobs.size(), 3u);
  for (size_t place = 0; place < asked.jobs.size(); ++place) {
    EXPECT_EQ(asked.jobs[place].name, specs[place + 1].name);
    for (const AdapterShape& adapter : asked.jobs[place].adapters) EXPECT_EQ(adapter.job, static_cast<int32_t>(place));
  }
  EXPECT_EQ(asked.running, *parse_parallel("dp=2,pp=2"));
  EXPECT_THAT(asked.tensor_degrees, ElementsAre(1, 2));
  ASSERT_EQ(swaps.told.size(), 1u);
  EXPECT_EQ(swaps.told.front().cause, "`plain` leaves");
  EXPECT_EQ(swaps.told.front().before, "dp=2,pp=2,tp=1");
  EXPECT_EQ(swaps.told.front().after, "dp=4,pp=1,tp=1");
  EXPECT_THAT(swaps.told.front().reason, HasSubstr("of moving"));
  EXPECT_GE(swaps.told.front().round, 2);
  EXPECT_EQ(summary.ranks.size(), 4u);
  EXPECT_EQ(summary.ranks.back().replica, 3);
}

TEST(PlannedSwaps, AreLeftOutWhereTheyDoNotPay) {
  for (const double kept_seconds : {1.02, 0.9, 0.0}) {  // less than predictions tell, worse, not known
    Planner planner({.best = {.parallel = *parse_parallel("dp=4"), .layouts = {}, .seconds = 1}, .kept_seconds = kept_seconds});
    Swaps swaps;
    SmallRun run("kept", at::kDouble);
    std::vector<JobSpec> specs = of_which_one_leaves();
    for (JobSpec& spec : specs) spec.train.steps = std::min<int64_t>(spec.train.steps, 8);
    const RunSummary summary = run_with(planner, swaps, run, specs);
    EXPECT_TRUE(swaps.told.empty()) << kept_seconds;
    EXPECT_FALSE(planner.asked.empty());
  }
}

}  // namespace
}  // namespace cotune::testing
