#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "ops/memory.h"
#include "train/checkpoint.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

std::vector<JobSpec> mixed_jobs(int64_t steps) {
  std::vector<JobSpec> specs{small_job("plain", AdapterMethod::lora, 1, steps),
                             small_job("bottleneck", AdapterMethod::bottleneck, 2, steps),
                             small_job("sparse", AdapterMethod::diff_pruning, 3, steps),
                             small_job("long", AdapterMethod::lora, 4, steps)};
  specs[0].adapter.dropout = 0.2;
  specs[3].adapter.use_rslora = true;
  specs[3].train.schedule = ScheduleKind::cosine;
  specs[3].train.warmup_steps = 2;
  specs[3].train.max_grad_norm = 0.5;
  return specs;
}

std::vector<std::string> finished_adapters(const SmallRun& run, const std::vector<JobSpec>& specs) {
  std::vector<std::string> bytes;
  for (const JobSpec& spec : specs) bytes.push_back(adapter_bytes(run, spec.name));
  return bytes;
}

TEST(Trainer, LowersTheHeldOutLossOfEveryMethod) {
  SmallRun run("lowers");
  auto trainer = run.trainer(mixed_jobs(40), {});
  trainer->run();
  for (const auto& job : trainer->jobs()) {
    EXPECT_EQ(job->state().status, JobStatus::finished) << job->spec().name << ": " << job->state().failure;
    EXPECT_LT(job->state().last_eval_loss, job->state().start_eval_loss - 0.1) << job->spec().name;
  }
}

TEST(Trainer, StoppedAnywhereAndResumedEndsWithEqualBits) {
  const std::vector<JobSpec> specs = mixed_jobs(9);
  SmallRun whole("whole");
  whole.trainer(specs, {})->run();
  const std::vector<std::string> expected = finished_adapters(whole, specs);
  for (const int64_t stop_at : {1, 4, 8}) {
    SmallRun run("stopped");
    std::atomic<bool> stop{false};
    AtStep observer([&](const StepEvent& event) {
      if (event.job->state().step == stop_at) stop = true;
    });
    TrainerOptions options;
    options.observers = {&observer};
    options.stop = &stop;
    EXPECT_TRUE(run.trainer(specs, options)->run().interrupted);
    run.trainer(specs, {}, true)->run();
    EXPECT_EQ(finished_adapters(run, specs), expected) << "stopped at " << stop_at;
  }
}

TEST(Trainer, EverySharingAndBudgetGivesEqualBits) {
  const std::vector<JobSpec> specs = mixed_jobs(4);
  SmallRun reference("reference");
  reference.trainer(specs, {})->run();
  const std::vector<std::string> expected = finished_adapters(reference, specs);
  for (const Sharing sharing : {Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid}) {
    SmallRun run("sharing");
    TrainerOptions options;
    options.policy.sharing = sharing;
    options.policy.token_budget = sharing == Sharing::hybrid ? 256 : 512;
    options.recompute = sharing == Sharing::temporal ? Recompute::always : Recompute::never;
    run.trainer(specs, options)->run();
    EXPECT_EQ(finished_adapters(run, specs), expected) << static_cast<int>(sharing);
  }
}

TEST(Trainer, AJobWhoseLossExplodesFailsAloneAndKeepsItsCheckpoint) {
  std::vector<JobSpec> specs = mixed_jobs(6);
  SmallRun alone("alone");
  alone.trainer({specs[0]}, {})->run();
  specs[1].train.learning_rate = 1e39;
  specs[1].train.save_steps = 1;
  SmallRun run("explodes");
  auto trainer = run.trainer(specs, {});
  trainer->run();
  EXPECT_EQ(trainer->jobs()[1]->state().status, JobStatus::failed);
  EXPECT_THAT(trainer->jobs()[1]->state().failure, ::testing::HasSubstr("not finite"));
  EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::finished);
  EXPECT_EQ(adapter_bytes(run, "plain"), adapter_bytes(alone, "plain"));
}

TEST(Trainer, StopsEarlyAndKeepsTheBestCheckpoint) {
  JobSpec spec = small_job("stops", AdapterMethod::lora, 1, 200);
  spec.train.learning_rate = 0.05;
  spec.train.eval_steps = 2;
  spec.train.early_stopping_patience = 2;
  spec.train.load_best = true;
  SmallRun run("early");
  auto trainer = run.trainer({spec}, {});
  trainer->run();
  const JobState& state = trainer->jobs()[0]->state();
  EXPECT_EQ(state.status, JobStatus::stopped_early);
  EXPECT_LT(state.step, 200);
  const auto best = best_checkpoint(run.folder / "jobs" / "stops");
  ASSERT_TRUE(best.has_value());
  EXPECT_EQ(best->filename(), "step-" + std::to_string(state.best_step));
  EXPECT_EQ(adapter_bytes(run, "stops"), read_file(*best / "adapter_model.safetensors"));
}

TEST(Trainer, ResumingRefusesOtherSettingsAndDamagedFiles) {
  JobSpec spec = small_job("job", AdapterMethod::lora, 1, 3);
  SmallRun run("refuses");
  run.trainer({spec}, {})->run();
  JobSpec other = spec;
  other.train.learning_rate = 1;
  EXPECT_THROW(run.trainer({other}, {}, true), UserError);
  const auto checkpoint = latest_checkpoint(run.folder / "jobs" / "job");
  ASSERT_TRUE(checkpoint.has_value());
  std::string bytes = read_file(*checkpoint / "optimizer.safetensors");
  bytes.back() ^= 1;
  write_file_atomically(*checkpoint / "optimizer.safetensors", bytes);
  try {
    run.trainer({spec}, {}, true);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("optimizer.safetensors"));
  }
}

TEST(Trainer, AJobThatCanNeverFitIsRefusedWithTheTermThatOverflows) {
  install_counting_allocator();
  SmallRun run("refused");
  TrainerOptions options;
  options.memory_limit_bytes = resident_bytes();  // nothing is left for jobs
  auto trainer = run.trainer(mixed_jobs(2), options);
  trainer->run();
  for (const auto& job : trainer->jobs()) {
    EXPECT_EQ(job->state().status, JobStatus::refused);
    EXPECT_FALSE(job->state().failure.empty());
  }
}

}  // namespace
}  // namespace cotune::testing
