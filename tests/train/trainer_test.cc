#include "support/adapter_bytes.h"
#include "train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "adapter/adapter_file.h"
#include "base/error.h"
#include "base/file.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/token_counts.h"
#include "schedule/token_recount.h"
#include "train/checkpoint.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

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
  SmallRun whole("whole", compared_dtype());
  whole.trainer(specs, {})->run();
  const std::vector<std::string> expected = finished_adapters(whole, specs);
  for (const int64_t stop_at : {1, 4, 8}) {
    SmallRun run("stopped", compared_dtype());
    std::atomic<bool> stop{false};
    AtStep observer([&](const StepEvent& event) {
      if (event.job->state().step == stop_at) stop = true;
    });
    TrainerOptions options;
    options.observers = {&observer};
    options.stop = &stop;
    EXPECT_TRUE(run.trainer(specs, options)->run().interrupted);
    run.trainer(specs, {}, true)->run();
    expect_same_adapters(finished_adapters(run, specs), expected, fmt::format("stopped at {}", stop_at));
  }
}

/// Jobs of two methods whose evaluations are due in the same rounds.
std::vector<JobSpec> evaluated_jobs(int64_t steps) {
  std::vector<JobSpec> specs{small_job("plain", AdapterMethod::lora, 1, steps),
                             small_job("bottleneck", AdapterMethod::bottleneck, 2, steps)};
  for (JobSpec& spec : specs) {
    spec.train.eval_steps = 2;
    spec.train.early_stopping_patience = 2;
    spec.train.load_best = true;
  }
  return specs;
}

/// Equal to the digit on the CPU; on a device, losses within rounding.
void expect_same_state(const TrainingJob& ours, const TrainingJob& other) {
  nlohmann::ordered_json left = nlohmann::ordered_json::parse(ours.state().to_json()),
                         right = nlohmann::ordered_json::parse(other.state().to_json());
  for (auto& [key, value] : left.items()) {
    const bool rounded = !test_device().is_cpu() && value.is_number_float() && right.at(key).is_number_float();
    if (!rounded) continue;
    EXPECT_NEAR(value.get<double>(), right.at(key).get<double>(), 1e-9 * std::abs(value.get<double>())) << key;
    right[key] = value;
  }
  EXPECT_EQ(left, right);
}

TEST(Trainer, StoppedInAnEvaluationMakesUpForItWhenResumed) {
  const std::vector<JobSpec> specs = evaluated_jobs(4);
  SmallRun whole("whole-evaluations", compared_dtype());
  auto expected = whole.trainer(specs, {});
  expected->run();
  for (const int64_t stop_at : {2, 4}) {
    SmallRun run("stopped-evaluation", compared_dtype());
    std::atomic<bool> stop{false};
    AtStep observer([&](const StepEvent& event) {
      if (event.job->state().step == stop_at) stop = true;  // the evaluation of this step comes next
    });
    TrainerOptions options;
    options.observers = {&observer};
    options.stop = &stop;
    auto stopped = run.trainer(specs, options);
    EXPECT_TRUE(stopped->run().interrupted);
    for (const auto& job : stopped->jobs()) EXPECT_EQ(job->state().last_eval_step, stop_at - 2) << job->spec().name;
    auto resumed = run.trainer(specs, {}, true);
    resumed->run();
    expect_same_adapters(finished_adapters(run, specs), finished_adapters(whole, specs), fmt::format("stopped at {}", stop_at));
    for (size_t i = 0; i < specs.size(); ++i) expect_same_state(*resumed->jobs()[i], *expected->jobs()[i]);
  }
}

TEST(Trainer, EvaluatesJobsThatAreDueTogetherThroughOnePlanWithTheBitsOfEachAlone) {
  const std::vector<JobSpec> specs = evaluated_jobs(4);
  SmallRun together("together", compared_dtype());
  auto all = together.trainer(specs, {});
  EXPECT_EQ(all->run().evaluation_rounds, 3);
  for (size_t i = 0; i < specs.size(); ++i) {
    SmallRun run("alone", compared_dtype());
    auto alone = run.trainer({specs[i]}, {});
    EXPECT_EQ(alone->run().evaluation_rounds, 3);
    expect_same_state(*alone->jobs()[0], *all->jobs()[i]);
  }
}

TEST(Trainer, EverySharingAndBudgetGivesEqualBits) {
  if (test_device().is_cpu() && kernel_isa(at::kFloat, at::kCPU) == kernels::Isa::none) {
    GTEST_SKIP() << "ATen's attention has other last bits where a budget cuts a row";
  }
  const std::vector<JobSpec> specs = mixed_jobs(4);
  SmallRun reference("reference", compared_dtype());
  reference.trainer(specs, {})->run();
  const std::vector<std::string> expected = finished_adapters(reference, specs);
  for (const Sharing sharing : {Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid}) {
    SmallRun run("sharing", compared_dtype());
    TrainerOptions options;
    options.policy.sharing = sharing;
    options.policy.token_budget = sharing == Sharing::hybrid ? 256 : 512;
    options.recompute = sharing == Sharing::temporal ? Recompute::always : Recompute::never;
    run.trainer(specs, options)->run();
    expect_same_adapters(finished_adapters(run, specs), expected, fmt::format("sharing {}", static_cast<int>(sharing)));
  }
}

TEST(Trainer, TellsOfEveryStepOfAJobWhatItsRowsTookInEveryLayout) {
  /// Counts each training round's microbatches again, and compares with what is told of the jobs' steps.
  class Recount : public RunObserver {
   public:
    void on_plan(const StepPlan& plan, std::span<const JobRound> rounds) override {
      if (rounds.front().purpose == RoundPurpose::train) planned_ = recount_tokens(plan);
    }
    void on_step(const StepEvent& event) override {
      const int32_t job = event.job->index();
      EXPECT_EQ(event.tokens, planned_.at(job)) << event.job->spec().name << ", step " << event.job->state().step;
      together[job] += event.tokens;
    }
    std::map<int32_t, TokenCounts> together;

   private:
    std::map<int32_t, TokenCounts> planned_;
  };
  for (const Layout layout : {Layout::ragged, Layout::chunked, Layout::padded}) {
    SmallRun run("tokens");
    Recount recount;
    TrainerOptions options;
    options.policy.layout = layout;
    options.observers = {&recount};
    const auto trainer = run.trainer(mixed_jobs(3), options);
    trainer->run();
    ASSERT_EQ(recount.together.size(), 4u);
    EXPECT_EQ(trainer->so_far().tokens, recount.together);
    for (const auto& [job, tokens] : recount.together) {
      EXPECT_GT(tokens.real, 0);
      EXPECT_EQ(tokens.processed() > tokens.real, layout != Layout::ragged) << "job " << job;
    }
  }
}

TEST(Trainer, AJobWhoseLossExplodesFailsAloneAndKeepsItsCheckpoint) {
  std::vector<JobSpec> specs = mixed_jobs(6);
  SmallRun alone("alone", compared_dtype());
  alone.trainer({specs[0]}, {})->run();
  specs[1] = small_job("explodes", AdapterMethod::lora, 2, 6);
  specs[1].train.learning_rate = 1e300;
  specs[1].train.save_steps = 1;
  SmallRun run("explodes", compared_dtype());
  auto trainer = run.trainer(specs, {});
  trainer->run();
  EXPECT_EQ(trainer->jobs()[1]->state().status, JobStatus::failed);
  EXPECT_THAT(trainer->jobs()[1]->state().failure, ::testing::HasSubstr("not finite"));
  EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::finished);
  expect_same_adapter(adapter_bytes(run, "plain"), adapter_bytes(alone, "plain"));
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

/// What observers are told at the end of jobs: the bytes of the adapter that is loaded then.
class LoadedAtEnd : public RunObserver {
 public:
  void on_job_ended(const TrainingJob& job) override {
    bytes = adapter_model_bytes(job.adapter());
    result = job.result();
  }
  std::string bytes;
  JobResult result;
};

TEST(Trainer, LeavesReportsAndHasLoadedTheBestEvaluatedAdapterAtTheEnd) {
  JobSpec spec = small_job("best", AdapterMethod::diff_pruning, 1, 12);
  spec.train.learning_rate = 0.3;  // too much: the held-out loss soon rises
  spec.train.eval_steps = 2;
  spec.train.load_best = true;
  SmallRun run("best");
  LoadedAtEnd loaded;
  std::map<int64_t, double> losses;
  class Evaluations : public RunObserver {
   public:
    explicit Evaluations(std::map<int64_t, double>& losses) : losses_(losses) {}
    void on_evaluation(const EvaluationEvent& event) override { losses_[event.step] = event.loss; }
    std::map<int64_t, double>& losses_;
  } evaluations(losses);
  TrainerOptions options;
  options.observers = {&loaded, &evaluations};
  auto trainer = run.trainer({spec}, options);
  trainer->run();
  const TrainingJob& job = *trainer->jobs()[0];
  ASSERT_EQ(job.state().status, JobStatus::finished);
  ASSERT_EQ(losses.size(), 7u);
  const double start = losses.at(0);
  losses.erase(0);
  const auto best = std::min_element(losses.begin(), losses.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  ASSERT_LT(best->first, 12) << "the test needs a run whose last step is not its best";
  for (const JobResult& result : {job.result(), loaded.result}) {
    EXPECT_EQ(result.step, best->first);
    EXPECT_EQ(result.eval_step, best->first);
    EXPECT_EQ(result.eval_loss, best->second);
    EXPECT_EQ(result.starts_better, start <= best->second);
  }
  EXPECT_EQ(loaded.bytes, adapter_bytes(run, "best"));
  EXPECT_EQ(loaded.bytes, read_file(run.folder / "jobs" / "best" / ("step-" + std::to_string(best->first)) / "adapter_model.safetensors"));
}

/// Held-out rows of other tokens than those that are learned: every step makes them less likely.
void hold_out_other_tokens(const JobSpec&, JobData& data) {
  Dataset other(data.eval.source(0));
  for (int64_t row = 0; row < data.eval.size(); ++row) {
    Example example = data.eval.example(row);
    for (int32_t& token : example.tokens) token += 100;
    other.add(example);
  }
  data.eval = other;
}

TEST(Trainer, LeavesTheBestAfterAStepEvenWhereNoneBeatsTheAdapterItBeganWith) {
  JobSpec spec = small_job("worse", AdapterMethod::lora, 1, 6);
  spec.train.learning_rate = 0.03;
  spec.train.eval_steps = 2;
  spec.train.load_best = true;
  SmallRun run("worse");
  run.change_data = hold_out_other_tokens;
  auto trainer = run.trainer({spec}, {});
  trainer->run();
  const TrainingJob& job = *trainer->jobs()[0];
  ASSERT_EQ(job.state().status, JobStatus::finished);
  ASSERT_GT(job.state().best_eval_loss, job.state().start_eval_loss) << "the test needs a run that makes it worse";
  EXPECT_GT(job.result().step, 0);
  EXPECT_EQ(job.result().step, job.state().best_step);
  EXPECT_TRUE(job.result().starts_better);
}

TEST(Trainer, AThresholdIsForPatienceAndNotForWhatIsBest) {
  JobSpec spec = small_job("slow", AdapterMethod::lora, 1, 60);
  spec.train.eval_steps = 5;
  spec.train.early_stopping_patience = 3;
  spec.train.early_stopping_threshold = 100;  // no evaluation after the first improves by so much
  spec.train.load_best = true;
  SmallRun run("slow");
  auto trainer = run.trainer({spec}, {});
  trainer->run();
  const JobState& state = trainer->jobs()[0]->state();
  EXPECT_EQ(state.status, JobStatus::stopped_early);
  EXPECT_EQ(state.step, 20);
  EXPECT_EQ(state.best_step, 20) << "the loss falls";
  EXPECT_EQ(state.best_eval_loss, state.last_eval_loss);
}

TEST(Trainer, AJobWhoseBestCheckpointIsGoneFailsAlone) {
  std::vector<JobSpec> specs = evaluated_jobs(6);
  specs[0].train.eval_steps = 3;
  specs[0].train.learning_rate = 0.03;
  SmallRun run("gone");
  run.change_data = hold_out_other_tokens;
  AtStep observer([&](const StepEvent& event) {
    if (event.job->index() == 0 && event.job->state().step == 6) {
      ASSERT_EQ(event.job->state().best_step, 3);
      const auto best = best_checkpoint(event.job->folder());
      write_file_atomically(*best / "adapter_model.safetensors", "damaged");
    }
  });
  TrainerOptions options;
  options.observers = {&observer};
  auto trainer = run.trainer(specs, options);
  trainer->run();
  ASSERT_EQ(trainer->jobs()[0]->state().best_step, 3) << "the test needs a run whose last step is not its best";
  EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::failed);
  EXPECT_THAT(trainer->jobs()[0]->state().failure, ::testing::HasSubstr("is damaged"));
  EXPECT_EQ(trainer->jobs()[1]->state().status, JobStatus::finished);
}

TEST(Trainer, TellsOnceOfADeadlineThatHasPassed) {
  std::vector<JobSpec> specs{small_job("late", AdapterMethod::lora, 1, 4), small_job("timely", AdapterMethod::lora, 2, 4)};
  specs[0].deadline = "1970-01-01T00:01:40Z";
  specs[1].deadline = "1970-01-02";
  class Notices : public RunObserver {
   public:
    void on_notice(const std::string& text) override { texts.push_back(text); }
    std::vector<std::string> texts;
  } notices;
  SmallRun run("deadline");
  int64_t now = 98;
  TrainerOptions options;
  options.observers = {&notices};
  options.time_of_day = [&] { return ++now; };  // 101 after the third round
  auto trainer = run.trainer(specs, options);
  trainer->run();
  EXPECT_THAT(notices.texts, ::testing::ElementsAre("deadline: job `late` is late: 1970-01-01T00:01:40Z has passed at step 3 of 4"));
  EXPECT_TRUE(trainer->jobs()[0]->state().missed_deadline);
  EXPECT_FALSE(trainer->jobs()[1]->state().missed_deadline);
  notices.texts.clear();
  trainer = run.trainer(specs, options, true);
  trainer->run();
  EXPECT_TRUE(trainer->jobs()[0]->state().missed_deadline) << "once it is resumed";
  EXPECT_FALSE(trainer->jobs()[1]->state().missed_deadline);
  EXPECT_THAT(notices.texts, ::testing::IsEmpty());
}

TEST(Trainer, AJobIsLateWhoseDeadlinePassesInItsLastEvaluation) {
  std::vector<JobSpec> specs{small_job("late", AdapterMethod::lora, 1, 1)};
  specs[0].deadline = "1970-01-01T00:01:40Z";
  specs[0].train.eval_steps = 1;
  class Evaluations : public RunObserver {
   public:
    void on_evaluation(const EvaluationEvent&) override { now = 101; }
    int64_t now = 1;
  } evaluations;
  SmallRun run("deadline_in_evaluation");
  TrainerOptions options;
  options.observers = {&evaluations};
  options.time_of_day = [&] { return evaluations.now; };
  auto trainer = run.trainer(specs, options);
  trainer->run();
  EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::finished);
  EXPECT_TRUE(trainer->jobs()[0]->state().missed_deadline);
}

TEST(Trainer, SeparateJobsGoInOrderOfPriorityAndDeadline) {
  std::vector<JobSpec> specs{small_job("a", AdapterMethod::lora, 1, 2), small_job("b", AdapterMethod::lora, 2, 2),
                             small_job("c", AdapterMethod::lora, 3, 2)};
  specs[1].deadline = "2030-01-01";
  specs[2].priority = 1;
  SmallRun run("order");
  std::string order;
  AtStep observer([&](const StepEvent& event) { order += event.job->spec().name; });
  TrainerOptions options;
  options.observers = {&observer};
  options.policy.sharing = Sharing::separate;
  run.trainer(specs, options)->run();
  EXPECT_EQ(order, "ccbbaa");
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
  const ComputeDevice& device = test_compute_device();
  options.memory_limit_bytes = device.is_cpu() ? resident_bytes() : device.memory().allocated_bytes + 1;  // nothing is left for jobs
  auto trainer = run.trainer(mixed_jobs(2), options);
  trainer->run();
  for (const auto& job : trainer->jobs()) {
    EXPECT_EQ(job->state().status, JobStatus::refused);
    EXPECT_FALSE(job->state().failure.empty());
  }
}

TEST(Trainer, AJobThatHadEndedStaysFinishedWhereItWouldNotFitAnyMore) {
  install_counting_allocator();
  SmallRun run("had-ended");
  run.trainer({small_job("job", AdapterMethod::lora, 1, 3)}, {})->run();
  const std::string adapter = read_file(run.folder / "jobs/job/adapter/adapter_model.safetensors");
  std::filesystem::remove_all(run.folder / "jobs/job/adapter");
  TrainerOptions options;
  const ComputeDevice& device = test_compute_device();
  options.memory_limit_bytes = device.is_cpu() ? resident_bytes() : device.memory().allocated_bytes + 1;
  auto trainer = run.trainer({small_job("job", AdapterMethod::lora, 1, 3), small_job("other", AdapterMethod::lora, 1, 3)}, options, true);
  trainer->run();
  EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::finished) << trainer->jobs()[0]->state().failure;
  EXPECT_EQ(trainer->jobs()[1]->state().status, JobStatus::refused);
  EXPECT_EQ(read_file(run.folder / "jobs/job/adapter/adapter_model.safetensors"), adapter);
}

TEST(Trainer, WritesNothingWhereItIsToldNotTo) {
  SmallRun run("folder-gone");
  TrainerOptions options;
  options.before_writing = [] { throw SystemError("the folder is gone"); };
  auto trainer = run.trainer({small_job("job", AdapterMethod::lora, 1, 3)}, options);
  EXPECT_THROW(trainer->run(), SystemError);
  EXPECT_FALSE(std::filesystem::exists(run.folder / "jobs/job/adapter"));
  EXPECT_FALSE(latest_checkpoint(run.folder / "jobs/job").has_value());
}

}  // namespace
}  // namespace cotune::testing
