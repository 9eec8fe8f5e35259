// Sharing hybrid in a run: the planner says which jobs share microbatches, at the start and whenever the resident jobs
// or the packing change; no job's bits depend on it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/verify_step_plan.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Tasks = std::vector<std::vector<std::string>>;

/// Whether adapters of other company are held against one another: not those of ATen in f32.
bool adapters_are_compared() {
  return !test_device().is_cpu() || kernel_isa(at::kFloat, at::kCPU) != kernels::Isa::none;
}

/// A device with small fixed costs: what a neighbour makes a job compute counts for more.
DeviceCosts costs_of_small_launches() {
  DeviceCosts costs{{.device = device_preset("cpu"), .dtype = "float32"}, "a device of small fixed costs"};
  costs.machine.device.launch_seconds = 3e-7;
  costs.machine.device.memory_bandwidth = 1e18;
  return costs;
}

class Plans : public RunObserver {
 public:
  void on_hybrid_tasks(const PlannedRound& plan) override { told.push_back(plan); }
  std::vector<PlannedRound> told;
  std::vector<std::string> causes() const {
    std::vector<std::string> texts;
    for (const PlannedRound& plan : told) texts.push_back(plan.cause);
    return texts;
  }
};

/// What every microbatch of training held.
class Microbatches : public RunObserver {
 public:
  void on_plan(const StepPlan& plan, std::span<const JobRound>) override {
    verify(plan, plan.policy.layer_count);
    for (const Microbatch& microbatch : plan.microbatches) {
      std::set<int32_t> jobs;
      for (const Atom& atom : microbatch.atoms) jobs.insert(atom.job);
      seen.insert(jobs);
    }
  }
  std::set<std::set<int32_t>> seen;
};

/// Two jobs adapted in the upper layer only and two adapted in both; they leave at different steps.
std::vector<JobSpec> upper_and_whole_jobs() {
  std::vector<JobSpec> specs{
      small_job("upper", AdapterMethod::lora, 1, 3), small_job("whole", AdapterMethod::lora, 2, 5),
      small_job("sparse", AdapterMethod::diff_pruning, 3, 3), small_job("both", AdapterMethod::bottleneck, 4, 4)};
  specs[0].adapter.layers_to_transform = {1};
  specs[2].adapter.layers_to_transform = {1};
  specs[2].adapter.selection_batches = 2;  // in rounds of their own, before its three steps
  specs[1].adapter.dropout = 0.2;
  return specs;
}

std::vector<std::string> fused_adapters(const std::vector<JobSpec>& specs) {
  SmallRun run("fused", compared_dtype());
  TrainerOptions options;
  options.policy.sharing = Sharing::batch_all;
  run.trainer(specs, options)->run();
  return finished_adapters(run, specs);
}

TEST(PlannedHybrid, IsPlannedAtTheStartAndWheneverAJobLeavesAndChangesNoBit) {
  const std::vector<JobSpec> specs = upper_and_whole_jobs();
  SmallRun run("planned", compared_dtype());
  Plans plans;
  Microbatches microbatches;
  TrainerOptions options;
  options.costs = costs_of_small_launches();
  options.observers = {&plans, &microbatches};
  const RunSummary summary = run.trainer(specs, options)->run();
  if (adapters_are_compared()) {
    expect_same_adapters(finished_adapters(run, specs), fused_adapters(specs));
  }

  EXPECT_THAT(plans.causes(), ElementsAre("start", "`upper` finished", "`both` finished"));
  const PlannedRound& first = plans.told[0];
  EXPECT_EQ(first.taken().name, "planned");
  EXPECT_EQ(first.taken().tasks, (Tasks{{"upper", "sparse"}, {"whole", "both"}}));
  EXPECT_THAT(first.reason, HasSubstr("less backward below a job's own adapters"));
  EXPECT_EQ(first.costs, "a device of small fixed costs");
  EXPECT_EQ(first.round, 0);
  EXPECT_EQ(first.token_budget, 1024);
  for (const JobGrouping& each : first.alternatives) EXPECT_GE(each.seconds, first.taken().seconds);
  EXPECT_EQ(plans.told[1].taken().tasks, (Tasks{{"whole", "both"}, {"sparse"}}));
  EXPECT_EQ(plans.told[2].taken().tasks, (Tasks{{"whole"}, {"sparse"}}));
  EXPECT_EQ(plans.told[2].taken().name, "each job by itself");
  EXPECT_GT(plans.told[2].round, plans.told[1].round);
  EXPECT_EQ(summary.plans, plans.told);

  EXPECT_TRUE(microbatches.seen.contains({0, 2}));
  EXPECT_TRUE(microbatches.seen.contains({1, 3}));
  for (const std::set<int32_t>& jobs : microbatches.seen) {
    const bool upper = jobs.contains(0) || jobs.contains(2), whole = jobs.contains(1) || jobs.contains(3);
    EXPECT_FALSE(upper && whole);
  }
}

TEST(PlannedHybrid, EqualRunsHaveEqualPlans) {
  const std::vector<JobSpec> specs = upper_and_whole_jobs();
  std::vector<PlannedRound> first;
  for (int repeat = 0; repeat < 2; ++repeat) {
    SmallRun run("equal");
    Plans plans;
    TrainerOptions options;
    options.observers = {&plans};
    run.trainer(specs, options)->run();
    EXPECT_EQ(plans.told[0].costs, roofline_costs(at::kFloat, test_compute_device()).source);
    if (repeat == 0) first = plans.told;
    EXPECT_EQ(plans.told, first);
  }
}

TEST(PlannedHybrid, StoppedAnywhereAndResumedEndsWithEqualBits) {
  const std::vector<JobSpec> specs = upper_and_whole_jobs();
  const std::vector<std::string> expected = fused_adapters(specs);
  for (const int64_t stop_at : {1, 3}) {
    SmallRun run("planned-stopped", compared_dtype());
    std::atomic<bool> stop{false};
    AtStep observer([&](const StepEvent& event) {
      if (event.job->state().step == stop_at) stop = true;
    });
    TrainerOptions options;
    options.costs = costs_of_small_launches();
    options.observers = {&observer};
    options.stop = &stop;
    EXPECT_TRUE(run.trainer(specs, options)->run().interrupted);
    Plans plans;
    options.observers = {&plans};
    options.stop = nullptr;
    run.trainer(specs, options, true)->run();
    EXPECT_EQ(plans.told.front().cause, "start");
    if (adapters_are_compared()) {
      expect_same_adapters(finished_adapters(run, specs), expected, fmt::format("stopped at {}", stop_at));
    }
  }
}

TEST(PlannedHybrid, ThatIsPrescribedIsFollowedAsFarAsItsJobsAreThere) {
  const std::vector<JobSpec> specs = upper_and_whole_jobs();
  const std::vector<std::string> expected = fused_adapters(specs);
  for (const HybridTasks& tasks : {HybridTasks{{0, 3}, {1, 2}}, HybridTasks{{3}, {2}, {0, 1}}}) {
    SmallRun run("followed", compared_dtype());
    Plans plans;
    Microbatches microbatches;
    TrainerOptions options;
    options.followed = FollowedTasks{tasks, "plan.json"};
    options.observers = {&plans, &microbatches};
    run.trainer(specs, options)->run();
    if (adapters_are_compared()) {
      expect_same_adapters(finished_adapters(run, specs), expected);
    }
    for (const std::set<int32_t>& jobs : microbatches.seen) {
      EXPECT_TRUE(std::any_of(tasks.begin(), tasks.end(), [&](const std::vector<int32_t>& task) {
        return std::includes(task.begin(), task.end(), jobs.begin(), jobs.end());
      }));
    }
    EXPECT_EQ(plans.told[0].taken().name, "of plan.json");
    EXPECT_EQ(plans.told[0].taken().tasks.size(), tasks.size());
    EXPECT_THAT(plans.told[0].reason, HasSubstr("plan.json says so; "));
    EXPECT_EQ(plans.told.size(), 3u) << "two jobs leave before the others";
    EXPECT_EQ(plans.told.back().taken().tasks.size(), tasks.size() == 2 ? 1u : 2u);
  }
}

TEST(PlannedHybrid, AJobThatComesToAFollowedPlanIsAHybridTaskByItself) {
  const std::vector<JobSpec> specs{small_job("a", AdapterMethod::lora, 1, 3), small_job("b", AdapterMethod::lora, 2, 3),
                                   small_job("later", AdapterMethod::lora, 3, 3)};
  SmallRun run("followed-later");
  Plans plans;
  TrainerOptions options;
  options.followed = FollowedTasks{{{0, 1}}, "plan.json"};
  options.observers = {&plans};
  bool has_come = false;
  options.between_rounds = [&](Trainer& trainer) {
    if (trainer.jobs()[0]->state().step == 0 || std::exchange(has_come, true)) return;
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    jobs.push_back(run.job(2, specs[2]));
    trainer.add_jobs(std::move(jobs));
  };
  run.trainer({specs[0], specs[1]}, options)->run();
  using Tasks = std::vector<std::vector<std::string>>;
  ASSERT_GE(plans.told.size(), 2u);
  EXPECT_EQ(plans.told[1].taken().tasks, (Tasks{{"a", "b"}, {"later"}}));
}

TEST(PlannedHybrid, OtherSharingAsksForNoPlan) {
  const std::vector<JobSpec> specs{small_job("a", AdapterMethod::lora, 1, 1),
                                   small_job("b", AdapterMethod::lora, 2, 1)};
  SmallRun run("other-sharing");
  Plans plans;
  TrainerOptions options;
  options.policy.sharing = Sharing::temporal;
  options.observers = {&plans};
  EXPECT_TRUE(run.trainer(specs, options)->run().plans.empty());
  EXPECT_TRUE(plans.told.empty());
}

/// Under some limits jobs wait and come in while others run, rounds shrink, jobs pause: a plan for every set of jobs
/// and every packing that is used, and the bits of the jobs alone.
TEST(PlannedHybrid, IsPlannedAnewForJobsThatComeInAndForSmallerRounds) {
  SKIP_ON_A_DEVICE() << "limits the host's tensors";
  std::vector<JobSpec> specs;
  for (int i = 0; i < 4; ++i) {
    specs.push_back(
        small_job(i == 3 ? "long" : "job" + std::to_string(i), AdapterMethod::lora, static_cast<uint64_t>(i), 1 + i));
    specs.back().adapter.r = 256;
    if (i % 2 == 0) specs.back().adapter.layers_to_transform = {1};
  }
  release_unused_memory();
  reset_memory_peaks();
  const int64_t before = memory_usage().held_bytes;
  const std::vector<std::string> expected = fused_adapters(specs);
  const int64_t all_jobs = memory_usage().peak_held_bytes - before;
  bool joined = false, shrank = false;
  for (const int64_t percent : {150, 60, 40, 30, 100, 80, 70, 50, 45, 35, 27, 25, 22, 20}) {
    if (joined && shrank) break;
    SmallRun run("limited");
    Plans plans;
    TrainerOptions options;
    options.costs = costs_of_small_launches();
    options.observers = {&plans};
    release_unused_memory();
    options.tensor_limit_bytes = memory_usage().held_bytes + all_jobs * percent / 100;
    const auto trainer = run.trainer(specs, options);
    trainer->run();
    for (const PlannedRound& plan : plans.told) {
      const bool company = plan.taken().tasks.size() > 1 || plan.taken().tasks[0].size() > 1;
      joined = joined || (plan.cause.find("joins") != std::string::npos && company);
      shrank = shrank || plan.token_budget < 1024;
      EXPECT_FALSE(plan.cause.empty());
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      const JobStatus status = trainer->jobs()[i]->state().status;
      if (status == JobStatus::refused) continue;
      ASSERT_EQ(status, JobStatus::finished) << percent << "%, " << trainer->jobs()[i]->state().failure;
      if (adapters_are_compared()) {
        EXPECT_EQ(adapter_bytes(run, specs[i].name), expected[i]) << percent << "%";
      }
    }
  }
  EXPECT_TRUE(joined) << "no limit let a job come in beside another";
  EXPECT_TRUE(shrank) << "no limit took a smaller token budget";
}

}  // namespace
}  // namespace cotune::testing
