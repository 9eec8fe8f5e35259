// Memory that runs short in the middle of rounds: what is left of them runs again, and every adapter is what it would have been.
#include <gtest/gtest.h>

#include "ops/memory.h"
#include "train/run_values.h"
#include "train/small_run.h"

namespace cotune {
namespace {

using namespace testing;

/// From one plan on no activations can be had, until the run gives something up.
class Shortage : public RunObserver {
 public:
  explicit Shortage(int64_t plan, int64_t left_bytes = int64_t{32} << 10) : plan_(plan), left_bytes_(left_bytes) {}
  void on_plan(const StepPlan&, std::span<const JobRound>) override {
    if (++count_ != plan_) return;
    release_unused_memory();
    set_memory_limit(memory_usage().held_bytes + left_bytes_);
  }
  void on_notice(const std::string&) override {
    set_memory_limit(0);
    ++notices;
  }
  int notices = 0;

 private:
  int64_t plan_, left_bytes_, count_ = 0;
};

TEST(MemoryTrouble, AtAnyPlaceOfARoundLeavesEveryAdapterAsItWouldHaveBeen) {
  SKIP_ON_A_DEVICE() << "limits the host's tensors";
  const std::vector<JobSpec> specs = mixed_jobs(3);
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    SmallRun expected("expected", compute);
    expected.trainer(specs, {})->run();
    int troubled_runs = 0, notices = 1;
    for (double left = 1024; notices > 0; left *= 1.5) {
      SmallRun troubled("troubled", compute);
      Shortage shortage(2, static_cast<int64_t>(left));
      TrainerOptions options;
      options.observers = {&shortage};
      const auto trainer = troubled.trainer(specs, options);
      trainer->run();
      notices = shortage.notices;
      troubled_runs += notices;
      for (const JobSpec& spec : specs) {
        EXPECT_EQ(adapter_bytes(troubled, spec.name), adapter_bytes(expected, spec.name)) << spec.name << " " << left << " " << compute;
      }
    }
    set_memory_limit(0);
    EXPECT_GT(troubled_runs, 6);
  }
}

TEST(MemoryTrouble, InAnyRoundLeavesEveryAdapterAsItWouldHaveBeen) {
  SKIP_ON_A_DEVICE() << "limits the host's tensors";
  const std::vector<JobSpec> specs = mixed_jobs(7);
  for (const int64_t ranks : {1, 2}) {
    TrainerOptions options;
    options.ranks = ranks;
    options.rounds_at_once = 3;
    SmallRun expected("expected", at::kDouble);
    expected.trainer(specs, options)->run();
    for (const int64_t plan : {1, 2, 4, 9}) {
      SmallRun troubled("troubled", at::kDouble);
      Shortage shortage(plan);
      options.observers = {&shortage};
      const auto trainer = troubled.trainer(specs, options);
      trainer->run();
      EXPECT_EQ(shortage.notices, 1) << ranks << " ranks, plan " << plan;
      for (const auto& job : trainer->jobs()) EXPECT_EQ(job->state().step, 7) << job->spec().name;
      expect_equal_adapters(troubled, expected, specs);
    }
  }
}

/// No activations can be had from the second round on, until the run has given something up `measures` times.
class LongShortage : public Shortage {
 public:
  explicit LongShortage(size_t measures) : Shortage(2), measures_(measures) {}
  void on_notice(const std::string& text) override {
    told.push_back(text.substr(text.rfind(": ") + 2));
    if (told.size() == measures_) set_memory_limit(0);
  }
  std::vector<std::string> told;

 private:
  size_t measures_;
};

TEST(MemoryTrouble, OnRanksFirstGivesUpWhatIsKeptBeyondTheirNumber) {
  SKIP_ON_A_DEVICE() << "limits the host's tensors";
  std::vector<JobSpec> specs{small_job("a", AdapterMethod::lora, 1, 7), small_job("b", AdapterMethod::bottleneck, 2, 7)};
  for (JobSpec& spec : specs) spec.train.batch_size = 8;
  TrainerOptions options;
  options.ranks = 2;
  options.policy.token_budget = 512;
  SmallRun run("in-flight", at::kDouble);
  run.change_data = [](const JobSpec&, JobData& data) { data.train = small_data(7, 40, 250); };  // no row is longer than a microbatch
  LongShortage shortage(3);
  options.observers = {&shortage};
  const auto trainer = run.trainer(specs, options);
  trainer->run();
  EXPECT_EQ(shortage.told, (std::vector<std::string>{"no more in flight than ranks need", "token budget 256", "recomputation"}));
  for (const auto& job : trainer->jobs()) EXPECT_EQ(job->state().step, 7) << job->spec().name;
}

/// No activations can be had from the second round on, until a job is set aside.
class ShortageUntilAJobPauses : public Shortage {
 public:
  ShortageUntilAJobPauses() : Shortage(2) {}
  void on_notice(const std::string& text) override {
    if (!text.ends_with("pauses at step 1")) return;
    set_memory_limit(0);
    ++notices;
  }
};

TEST(MemoryTrouble, AJobThatItSetAsideComesBackWhereItsPriorityIsRaised) {
  SKIP_ON_A_DEVICE() << "limits the host's tensors";
  const std::vector<JobSpec> specs{small_job("a", AdapterMethod::lora, 1, 4), small_job("b", AdapterMethod::bottleneck, 2, 4)};
  SmallRun expected("expected", at::kDouble);
  expected.trainer(specs, {})->run();
  SmallRun run("aside", at::kDouble);
  ShortageUntilAJobPauses shortage;
  TrainerOptions options;
  options.observers = {&shortage};
  bool is_raised = false;
  options.between_rounds = [&](Trainer& trainer) {
    if (shortage.notices == 0 || is_raised) return;
    is_raised = true;
    TrainingJob &first = *trainer.jobs()[0], &second = *trainer.jobs()[1];
    TrainingJob& aside = first.state().status == JobStatus::waiting ? first : second;
    EXPECT_EQ(aside.state().status, JobStatus::waiting);
    EXPECT_LT(std::max(first.state().step, second.state().step), 4) << "nobody has ended";
    trainer.set_priority(aside, 1);
    EXPECT_EQ(aside.state().status, JobStatus::running);
  };
  run.trainer(specs, options)->run();
  EXPECT_TRUE(is_raised);
  expect_equal_adapters(run, expected, specs);
}

}  // namespace
}  // namespace cotune
