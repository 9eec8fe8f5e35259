#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "train/checkpoint.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

using ::testing::HasSubstr;

constexpr int64_t steps = 5, good_steps = 2;

/// Four jobs, the second of which is to break after good_steps.
std::vector<JobSpec> jobs_with_a_bad_one() {
  std::vector<JobSpec> specs = mixed_jobs(steps);
  specs[1] = small_job("bad", AdapterMethod::lora, 2, steps);
  specs[1].train.shuffle = Shuffle::none;
  return specs;
}

/// The adapters of all but the bad job.
std::vector<std::string> other_adapters(const SmallRun& run) {
  std::vector<std::string> bytes;
  for (const char* name : {"plain", "sparse", "long"}) bytes.push_back(adapter_bytes(run, name));
  return bytes;
}

/// What the other jobs are without the bad one, and where it ends normally at the step at which it is to break.
class FailingJob : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::vector<JobSpec> specs = jobs_with_a_bad_one();
    specs[1].train.steps = good_steps;
    SmallRun ends("ends", compared_dtype());
    ends.trainer(specs, {})->run();
    others_ = other_adapters(ends);
    good_ = adapter_bytes(ends, "bad");
    specs.erase(specs.begin() + 1);
    SmallRun without("without", compared_dtype());
    without.trainer(specs, {})->run();
    expect_same_adapters(other_adapters(without), others_);
  }

  /// Runs the jobs; the bad one must fail with this reason, and the others must not notice.
  void expect_it_fails_alone(SmallRun& run, const std::vector<JobSpec>& specs, TrainerOptions options,
                             const std::string& reason) {
    auto trainer = run.trainer(specs, std::move(options));
    trainer->run();
    const JobState& state = trainer->jobs()[1]->state();
    EXPECT_EQ(state.status, JobStatus::failed);
    EXPECT_EQ(state.step, good_steps);
    EXPECT_THAT(state.failure, HasSubstr(reason));
    for (const size_t other : {0, 2, 3}) EXPECT_EQ(trainer->jobs()[other]->state().status, JobStatus::finished);
    expect_same_adapters(other_adapters(run), others_);
    EXPECT_FALSE(std::filesystem::exists(run.folder / "jobs" / "bad" / "adapter"));
    const auto checkpoint = latest_checkpoint(run.folder / "jobs" / "bad");
    ASSERT_TRUE(checkpoint.has_value());
    EXPECT_THAT(state.failure, HasSubstr("last good checkpoint: " + checkpoint->string()));
    expect_same_adapter(read_file(*checkpoint / "adapter_model.safetensors"), good_);
  }

  static inline std::vector<std::string> others_;
  static inline std::string good_;
};

void break_token(Dataset& dataset, int64_t broken_row) {
  Dataset broken(dataset.source(0));
  for (int64_t row = 0; row < dataset.size(); ++row) {
    Example example = dataset.example(row);
    if (row == broken_row) example.tokens.back() = 5000;
    broken.add(example);
  }
  dataset = broken;
}

TEST_F(FailingJob, WhoseDataBreakLeavesTheOthersAsTheyAre) {
  SmallRun run("data", compared_dtype());
  const std::vector<JobSpec> specs = jobs_with_a_bad_one();
  run.change_data = [&](const JobSpec& spec, JobData& data) {
    if (spec.name == "bad") break_token(data.train, good_steps * spec.train.batch_size + 1);
  };
  expect_it_fails_alone(run, specs, {}, "random:8: holds token 5000, but the model's vocabulary has 160 tokens");
}

TEST_F(FailingJob, WhoseLossTurnsNaNLeavesTheOthersAsTheyAre) {
  SmallRun run("nan", compared_dtype());
  std::vector<JobSpec> specs = jobs_with_a_bad_one();
  for (JobSpec& spec : specs) spec.train.save_steps = 1;
  specs[1].train.eval_steps = good_steps;  // shows that the checkpoint made there is sound
  AtStep observer([](const StepEvent&) {}, [](const TrainingJob& job) {
    if (job.spec().name != "bad" || job.state().step != good_steps) return;
    job.adapter().parameters().front().value.fill_(std::numeric_limits<float>::quiet_NaN());
    job.adapter().refresh();
  });
  TrainerOptions options;
  options.observers = {&observer};
  expect_it_fails_alone(run, specs, options, "the loss of step 3 is not finite (nan)");
}

/// Fills the bad job's first parameter, after this step and before what follows it.
AtStep fill_after(int64_t step, float value) {
  return AtStep([=](const StepEvent& event) {
    if (event.job->spec().name != "bad" || event.job->state().step != step) return;
    event.job->adapter().parameters().front().value.fill_(value);
    event.job->adapter().refresh();
  });
}

std::string newest_checkpoint(const SmallRun& run) {
  const auto newest = latest_checkpoint(run.folder / "jobs" / "bad");
  return newest ? newest->filename().string() : "none";
}

constexpr float huge = 3.4e38F;  // a number, as every product that it enters is not, whatever computes it

TEST_F(FailingJob, GoesBackToTheLastCheckpointThatGaveAFiniteLoss) {
  struct Case {
    int64_t save_steps, eval_steps, breaks_after;
    std::string newest, said;
  };
  const std::vector<Case> cases = {
      {1, 0, 3, "step-2", "last good checkpoint"},   // step-3 was saved as well, and is huge
      {2, 0, 3, "step-2", "last good checkpoint"},   // what broke after it is not saved
      {0, 0, 3, "none", "it has no checkpoint"},     // nor where there is nothing else
      {3, 0, 3, "step-3", "its only checkpoint holds the parameters that gave it"},
      {1, 3, 3, "step-2", "the held-out loss is not finite; last good checkpoint"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.said + ", save_steps " + std::to_string(c.save_steps));
    SmallRun run("goes-back");
    JobSpec spec = jobs_with_a_bad_one()[1];
    spec.train.save_steps = c.save_steps;
    spec.train.eval_steps = c.eval_steps;
    AtStep observer = fill_after(c.breaks_after, huge);
    TrainerOptions options;
    options.observers = {&observer};
    auto trainer = run.trainer({spec}, options);
    trainer->run();
    EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::failed);
    EXPECT_THAT(trainer->jobs()[0]->state().failure, HasSubstr(c.said));
    EXPECT_EQ(newest_checkpoint(run), c.newest);
    auto resumed = run.trainer({spec}, {}, true);  // without what broke it
    resumed->run();
    if (c.newest == "step-3") continue;
    EXPECT_EQ(resumed->jobs()[0]->state().status, JobStatus::finished) << resumed->jobs()[0]->state().failure;
  }
}

TEST_F(FailingJob, KeepsACheckpointThatAHeldOutLossHasShownToBeSound) {
  SmallRun run("sound");
  JobSpec spec = jobs_with_a_bad_one()[1];
  spec.train.save_steps = 1;
  spec.train.eval_steps = 3;
  AtStep observer([](const StepEvent&) {}, [](const TrainingJob& job) {
    if (job.state().step != 3) return;
    job.adapter().parameters().front().value.fill_(huge);
    job.adapter().refresh();
  });
  TrainerOptions options;
  options.observers = {&observer};
  auto trainer = run.trainer({spec}, options);
  trainer->run();
  EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::failed);
  EXPECT_EQ(newest_checkpoint(run), "step-3");
}

/// The job's parameters are bad from this step on, at which its run is stopped and saved.
void stop_after_breaking(SmallRun& run, const JobSpec& spec, int64_t step) {
  std::atomic<bool> stop{false};
  AtStep observer = fill_after(step, huge);
  AtStep stopper([&](const StepEvent& event) { stop = event.job->state().step == step; });
  TrainerOptions options;
  options.observers = {&observer, &stopper};
  options.stop = &stop;
  run.trainer({spec}, options)->run();
}

TEST_F(FailingJob, ResumedFromItsBadCheckpointGoesBackToTheOneBefore) {
  SmallRun run("resumed-bad");
  JobSpec spec = jobs_with_a_bad_one()[1];
  spec.train.save_steps = 1;
  stop_after_breaking(run, spec, 3);
  EXPECT_EQ(newest_checkpoint(run), "step-3");  // nobody knows yet
  run.trainer({spec}, {}, true)->run();
  EXPECT_EQ(newest_checkpoint(run), "step-2");
  auto resumed = run.trainer({spec}, {}, true);
  resumed->run();
  EXPECT_EQ(resumed->jobs()[0]->state().status, JobStatus::finished);
}

TEST_F(FailingJob, ResumedBeforeTheEvaluationOfItsStartCallsABadCheckpointNoGoodOne) {
  SmallRun run("resumed-start");
  JobSpec spec = jobs_with_a_bad_one()[1];
  spec.train.save_steps = 0;
  stop_after_breaking(run, spec, 1);  // the evaluation of the base model, which comes next, is broken off
  EXPECT_EQ(newest_checkpoint(run), "step-1");
  auto resumed = run.trainer({spec}, {}, true);
  resumed->run();
  const JobState& state = resumed->jobs()[0]->state();
  EXPECT_TRUE(std::isfinite(state.start_eval_loss));
  EXPECT_THAT(state.failure, HasSubstr("its only checkpoint holds the parameters that gave it"));
}

TEST_F(FailingJob, WhoseHeldOutLossTurnsNaNLeavesTheOthersAsTheyAre) {
  SmallRun run("held-out", compared_dtype());
  std::vector<JobSpec> specs = jobs_with_a_bad_one();
  for (JobSpec& spec : specs) spec.train.eval_steps = good_steps;
  run.change_data = [&](const JobSpec& spec, JobData& data) {
    if (spec.name == "bad") break_token(data.eval, 2);
  };
  // Broken held-out data are found after the first step, which is saved: they say nothing against it.
  auto trainer = run.trainer(specs, {});
  trainer->run();
  EXPECT_EQ(trainer->jobs()[1]->state().status, JobStatus::failed);
  EXPECT_THAT(trainer->jobs()[1]->state().failure, HasSubstr("random:3: holds token 5000"));
  EXPECT_EQ(latest_checkpoint(run.folder / "jobs" / "bad").value().filename(), "step-1");
  expect_same_adapters(other_adapters(run), others_);

  SmallRun nan("held-out-nan", compared_dtype());  // parameters break between a step and the evaluation that follows it
  specs[1].train.save_steps = 1;
  AtStep observer(
      [&](const StepEvent& event) {
        if (event.job->spec().name != "bad" || event.job->state().step != good_steps) return;
        event.job->adapter().parameters().front().value.fill_(std::numeric_limits<float>::quiet_NaN());
        event.job->adapter().refresh();
      });
  TrainerOptions options;
  options.observers = {&observer};
  auto other = nan.trainer(specs, options);
  other->run();
  EXPECT_EQ(other->jobs()[1]->state().status, JobStatus::failed);
  EXPECT_THAT(other->jobs()[1]->state().failure, HasSubstr("held-out loss is not finite; last good checkpoint"));
  EXPECT_EQ(latest_checkpoint(nan.folder / "jobs" / "bad").value().filename(), "step-1");
  expect_same_adapters(other_adapters(nan), others_);
}

}  // namespace
}  // namespace cotune::testing
