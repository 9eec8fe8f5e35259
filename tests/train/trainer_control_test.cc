// Jobs that come, leave, pause and go on while a run goes on: nobody else becomes anything else, nor do they.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <set>

#include "base/error.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "train/checkpoint.h"
#include "train/run_values.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

using ::testing::HasSubstr;

/// Does things to a run at the first boundary at which a job has made so many steps.
class Script {
 public:
  using Deed = std::function<void(Trainer&, TrainingJob&)>;
  void at(const std::string& job, int64_t step, Deed deed) { deeds_[{job, step}] = std::move(deed); }

  void operator()(Trainer& trainer) {
    std::vector<std::pair<std::string, Deed>> due;
    for (const auto& job : trainer.jobs()) {
      std::erase_if(deeds_, [&](auto& deed) {
        const auto& [name, step] = deed.first;
        const bool is_due = name == job->spec().name && step <= job->state().step;
        if (is_due) due.emplace_back(name, std::move(deed.second));
        return is_due;
      });
    }
    for (const auto& [name, deed] : due) deed(trainer, job(trainer, name));
  }

  static TrainingJob& job(Trainer& trainer, const std::string& name) {
    for (const auto& each : trainer.jobs()) {
      if (each->spec().name == name) return *each;
    }
    throw InternalError(name);
  }
  bool is_done() const { return deeds_.empty(); }

 private:
  std::map<std::pair<std::string, int64_t>, Deed> deeds_;
};

TrainerOptions with(Script& script) {
  TrainerOptions options;
  options.policy.token_budget = 256;
  options.between_rounds = [&](Trainer& trainer) { script(trainer); };
  return options;
}

/// The jobs' losses, step by step.
std::map<std::string, std::vector<double>> losses_of(const Trainer& trainer, const RunSummary& summary) {
  std::map<std::string, std::vector<double>> losses;
  for (const auto& job : trainer.jobs()) {
    const auto found = summary.losses.find(job->index());
    if (found != summary.losses.end()) losses[job->spec().name] = found->second;
  }
  return losses;
}

/// Jobs of every method with evaluations, so that something is due at many boundaries.
std::vector<JobSpec> busy_jobs(int64_t steps) {
  std::vector<JobSpec> specs = mixed_jobs(steps);
  specs[1].train.eval_steps = 3;
  specs[3].train.save_steps = 4;
  return specs;
}

/// Our kernels give equal bits in any company. ATen's attention has other last bits where a row is cut, which company decides:
/// there, and on a device, runs agree within rounding, in f64.
bool bits_are_equal() { return test_device().is_cpu() && kernel_isa(at::kFloat, at::kCPU) != kernels::Isa::none; }
at::ScalarType dtype() { return bits_are_equal() ? at::kFloat : at::kDouble; }

/// What tensors of a run of these jobs take at most beside those that there are. Leaves neither its folder nor memory for reuse.
int64_t peak_of_run(SmallRun& run, const std::vector<JobSpec>& specs) {
  release_unused_memory();
  const int64_t before = memory_usage().held_bytes;
  reset_memory_peaks();
  run.trainer(specs, {})->run();
  const int64_t peak = memory_usage().peak_held_bytes - before;
  std::filesystem::remove_all(run.folder);
  release_unused_memory();
  return peak;
}

/// A run without any change.
struct Undisturbed {
  /// compute: f32 where no row is cut, which gives equal bits everywhere on the CPU.
  explicit Undisturbed(const std::vector<JobSpec>& specs, at::ScalarType compute = dtype())
      : run("undisturbed" + std::to_string(++count), compute), is_exact(compute == at::kFloat) {
    auto trainer = run.trainer(specs, {});
    const RunSummary summary = trainer->run();
    losses = losses_of(*trainer, summary);
  }
  SmallRun run;
  bool is_exact;
  std::map<std::string, std::vector<double>> losses;
  inline static int count = 0;
};

void expect_same_jobs(const SmallRun& run, const Undisturbed& undisturbed, const std::vector<std::string>& jobs) {
  for (const std::string& job : jobs) {
    const std::string ours = adapter_bytes(run, job), other = adapter_bytes(undisturbed.run, job);
    if (undisturbed.is_exact) {
      EXPECT_EQ(ours, other) << job;
    } else {
      expect_close_adapter(ours, other, job);
    }
  }
}

TEST(RunControlled, APausedJobEndsAsOneThatWasNeverPausedAndChangesNobody) {
  const std::vector<JobSpec> specs = busy_jobs(8);
  const Undisturbed undisturbed(specs);
  for (const std::string name : {"plain", "sparse"}) {
    SmallRun run("paused", dtype());
    Script script;
    const std::string other = name == "plain" ? "long" : "plain";
    script.at(name, 3, [](Trainer& trainer, TrainingJob& job) {
      trainer.pause_job(job);
      EXPECT_FALSE(job.is_loaded());
      EXPECT_EQ(job.state().status, JobStatus::paused);
      EXPECT_TRUE(latest_checkpoint(job.folder()));
    });
    script.at(other, 6, [&](Trainer& trainer, TrainingJob&) {
      EXPECT_EQ(Script::job(trainer, name).state().step, 3);
      trainer.resume_job(Script::job(trainer, name));
      EXPECT_TRUE(Script::job(trainer, name).is_loaded());
    });
    auto trainer = run.trainer(specs, with(script));
    const RunSummary summary = trainer->run();
    EXPECT_TRUE(script.is_done());
    EXPECT_FALSE(summary.interrupted);
    expect_same_jobs(run, undisturbed, {"plain", "bottleneck", "sparse", "long"});
    const auto losses = losses_of(*trainer, summary);
    if (bits_are_equal()) {
      EXPECT_EQ(losses, undisturbed.losses) << name;
    }
  }
}

TEST(RunControlled, AJobMayPauseBeforeItsFirstStepAndWhileItChoosesItsEntries) {
  const std::vector<JobSpec> specs = busy_jobs(4);
  const Undisturbed undisturbed(specs);
  SmallRun run("paused-early", dtype());
  Script script;
  script.at("sparse", 0, [](Trainer& trainer, TrainingJob& job) { trainer.pause_job(job); });
  int boundaries = 0;
  TrainerOptions options = with(script);
  options.between_rounds = [&](Trainer& trainer) {
    // The second boundary: one of two batches of the selection is through.
    if (++boundaries == 2) script(trainer);
    if (boundaries == 3) {
      trainer.resume_job(*trainer.jobs()[2]);
      trainer.pause_job(*trainer.jobs()[2]);  // changes its mind, twice at one boundary
      trainer.resume_job(*trainer.jobs()[2]);
    }
  };
  auto trainer = run.trainer(specs, options);
  trainer->run();
  EXPECT_TRUE(script.is_done());
  expect_same_jobs(run, undisturbed, {"plain", "bottleneck", "sparse", "long"});
}

TEST(RunControlled, AnAddedJobTrainsAsItDoesAloneAndChangesNobody) {
  const std::vector<JobSpec> specs = busy_jobs(7);
  const Undisturbed undisturbed({specs[0], specs[2]}), alone({specs[1]}), of_long({specs[3]});
  SmallRun run("added", dtype());
  Script script;
  script.at("sparse", 2, [&](Trainer& trainer, TrainingJob&) {
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    jobs.push_back(run.job(2, specs[1]));
    jobs.push_back(run.job(3, specs[3]));
    trainer.add_jobs(std::move(jobs));
  });
  auto trainer = run.trainer({specs[0], specs[2]}, with(script));
  const RunSummary summary = trainer->run();
  ASSERT_EQ(trainer->jobs().size(), 4u);
  for (const auto& job : trainer->jobs()) EXPECT_EQ(job->state().status, JobStatus::finished) << job->state().failure;
  expect_same_jobs(run, undisturbed, {"plain", "sparse"});
  expect_same_jobs(run, alone, {"bottleneck"});
  expect_same_jobs(run, of_long, {"long"});
  ASSERT_GE(summary.plans.size(), 2u);
  EXPECT_EQ(summary.plans[1].cause, "`bottleneck` joins, `long` joins") << "planned anew";
}

/// MX-6: the backbone is not loaded again, nor moved.
TEST(RunControlled, AJobThatJoinsAndOneThatLeavesChangeNobodyAndLeaveTheWeightsWhereTheyAre) {
  std::vector<JobSpec> specs{small_job("stays", AdapterMethod::lora, 1, 20), small_job("leaves", AdapterMethod::bottleneck, 2, 20),
                             small_job("joins", AdapterMethod::lora, 3, 15)};
  specs[0].adapter.dropout = 0.2;
  const Undisturbed alone({specs[0]}), joining({specs[2]});
  SmallRun run("joins-and-leaves", dtype());
  struct Weights {
    const void *first, *last, *norm;
    int64_t bytes, alive, peak;
    bool operator==(const Weights&) const = default;
  };
  const auto weights = [&] {
    const Backbone& backbone = *run.backbone;
    const MemoryUsage usage = memory_usage();
    const auto kind = static_cast<size_t>(MemoryKind::weights);
    const auto place = [](const FrozenProduct& product) { return product.form(WeightForm::forward).const_data_ptr(); };
    return Weights{place(*backbone.layer(0).qkv), place(*backbone.layer(1).down), backbone.layer(1).mlp_norm.const_data_ptr(),
                   backbone.weight_bytes(), usage.bytes[kind], usage.peak_bytes[kind]};
  };
  reset_memory_peaks();
  const Weights before = weights();
  EXPECT_TRUE(!test_device().is_cpu() || before.peak >= before.bytes) << before.peak;
  int64_t leaves_at = 0;
  Script script;
  script.at("stays", 4, [&](Trainer&, TrainingJob&) { EXPECT_EQ(weights(), before) << "two jobs have made steps"; });
  script.at("stays", 5, [&](Trainer& trainer, TrainingJob& job) {
    EXPECT_EQ(job.state().step, 5);
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    jobs.push_back(run.job(2, specs[2]));
    trainer.add_jobs(std::move(jobs));
  });
  script.at("joins", 2, [&](Trainer& trainer, TrainingJob&) {
    EXPECT_LT(Script::job(trainer, "stays").state().step, 10);
    EXPECT_EQ(weights(), before) << "one has joined";
  });
  script.at("stays", 10, [&](Trainer& trainer, TrainingJob&) {
    TrainingJob& job = Script::job(trainer, "leaves");
    leaves_at = job.state().step;
    trainer.cancel_job(job);
  });
  script.at("stays", 12, [&](Trainer& trainer, TrainingJob&) {
    EXPECT_EQ(Script::job(trainer, "leaves").state().status, JobStatus::cancelled);
    EXPECT_EQ(weights(), before) << "one has left";
  });
  auto trainer = run.trainer({specs[0], specs[1]}, with(script));
  const RunSummary summary = trainer->run();
  EXPECT_TRUE(script.is_done());
  EXPECT_EQ(leaves_at, 10);
  EXPECT_EQ(weights(), before) << "at the end";
  expect_same_jobs(run, alone, {"stays"});
  expect_same_jobs(run, joining, {"joins"});
  const std::vector<double>& losses = summary.losses.at(0);
  const std::vector<double>& expected = alone.losses.at("stays");
  ASSERT_EQ(losses.size(), 20u);
  ASSERT_EQ(expected.size(), 20u);
  for (size_t step = 0; step < losses.size(); ++step) {
    if (bits_are_equal()) {
      EXPECT_EQ(losses[step], expected[step]) << step;
    } else {
      EXPECT_NEAR(losses[step], expected[step], 1e-10) << step;
    }
  }
}

TEST(RunControlled, ACancelledJobKeepsACheckpointAndChangesNobody) {
  const std::vector<JobSpec> specs = busy_jobs(7);
  const Undisturbed undisturbed({specs[0], specs[1], specs[3]});
  SmallRun run("cancelled", dtype());
  Script script;
  script.at("sparse", 3, [](Trainer& trainer, TrainingJob& job) {
    trainer.cancel_job(job);
    EXPECT_THROW(trainer.pause_job(job), UserError);
    EXPECT_THROW(trainer.resume_job(job), UserError);
    EXPECT_THROW(trainer.cancel_job(job), UserError);
    EXPECT_THROW(trainer.set_priority(job, 1), UserError);
  });
  auto trainer = run.trainer(specs, with(script));
  const RunSummary summary = trainer->run();
  const TrainingJob& cancelled = *trainer->jobs()[2];
  EXPECT_EQ(cancelled.state().status, JobStatus::cancelled);
  for (const auto& job : trainer->jobs()) EXPECT_TRUE(job->data().train.empty()) << "runs that stay would pile data up";
  EXPECT_EQ(read_checkpoint_state(latest_checkpoint(cancelled.folder()).value()).step, 3);
  EXPECT_FALSE(std::filesystem::exists(cancelled.folder() / "adapter"));
  EXPECT_EQ(summary.losses.at(2).size(), 3u);
  EXPECT_FALSE(summary.interrupted);
  expect_same_jobs(run, undisturbed, {"plain", "bottleneck", "long"});
}

TEST(RunControlled, AResumedRunLeavesCancelledAndPausedJobsAsTheyAre) {
  const std::vector<JobSpec> specs = busy_jobs(4);
  SmallRun run("still");
  auto trainer = run.trainer(specs, {});
  trainer->jobs()[0]->state().status = JobStatus::cancelled;
  trainer->jobs()[1]->state().status = JobStatus::paused;
  const RunSummary summary = trainer->run();
  EXPECT_EQ(trainer->jobs()[0]->state().step, 0);
  EXPECT_EQ(trainer->jobs()[1]->state().step, 0);
  EXPECT_EQ(trainer->jobs()[2]->state().status, JobStatus::finished);
  EXPECT_TRUE(summary.interrupted) << "one is paused";
}

TEST(RunControlled, WithPausedJobsOnlyItEndsAndLeavesThemToResume) {
  const std::vector<JobSpec> specs = busy_jobs(6);
  const Undisturbed undisturbed(specs);
  SmallRun run("only-paused", dtype());
  Script script;
  script.at("plain", 2, [](Trainer& trainer, TrainingJob&) {
    for (const auto& job : trainer.jobs()) trainer.pause_job(*job);
  });
  EXPECT_TRUE(run.trainer(specs, with(script))->run().interrupted);
  EXPECT_FALSE(run.trainer(specs, {}, true)->run().interrupted);
  expect_same_jobs(run, undisturbed, {"plain", "bottleneck", "sparse", "long"});
}

TEST(RunControlled, WaitsForWorkAsLongAsItIsToldTo) {
  const std::vector<JobSpec> specs = busy_jobs(3);
  const Undisturbed undisturbed(specs);
  SmallRun run("stays", dtype());
  std::vector<size_t> to_add = {1, 2, 3};
  size_t waits = 0;
  TrainerOptions options;
  options.wait_for_work = [&] { return ++waits <= 3; };
  options.between_rounds = [&](Trainer& trainer) {
    if (waits < trainer.jobs().size() || to_add.empty()) return;
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    jobs.push_back(run.job(trainer.jobs().size(), specs[to_add.front()]));
    to_add.erase(to_add.begin());
    trainer.add_jobs(std::move(jobs));
  };
  run.trainer({specs[0]}, options)->run();
  EXPECT_EQ(waits, 4u);
  expect_same_jobs(run, undisturbed, {"plain", "bottleneck", "sparse", "long"});
}

TEST(RunControlled, EndsWhenItIsDrainedWithEveryJobSaved) {
  const std::vector<JobSpec> specs = busy_jobs(6);
  const Undisturbed undisturbed(specs);
  SmallRun run("drained", dtype());
  std::atomic<bool> drained{false};
  Script script;
  script.at("long", 3, [&](Trainer&, TrainingJob&) { drained = true; });
  TrainerOptions options = with(script);
  options.drained = &drained;
  auto trainer = run.trainer(specs, options);
  EXPECT_TRUE(trainer->run().interrupted);
  EXPECT_EQ(trainer->jobs()[3]->state().step, 3);
  run.trainer(specs, {}, true)->run();
  expect_same_jobs(run, undisturbed, {"plain", "bottleneck", "sparse", "long"});
}

TEST(RunControlled, AnAddedJobThatDoesNotFitWaitsSaysWhyAndStartsWhenAnotherLeaves) {
  SKIP_ON_A_DEVICE() << "limits and counts the host's tensors";
  std::vector<JobSpec> specs{small_job("first", AdapterMethod::lora, 1, 6), small_job("second", AdapterMethod::lora, 2, 6),
                             small_job("third", AdapterMethod::lora, 3, 6)};
  for (JobSpec& spec : specs) spec.adapter.r = 512;
  specs[0].priority = 5;
  const Undisturbed undisturbed({specs[0], specs[2]}, at::kFloat);
  SmallRun run("waits");
  Script script;
  TrainerOptions options = with(script);
  const int64_t one_job = peak_of_run(run, {specs[0]});
  options.tensor_limit_bytes = memory_usage().held_bytes + one_job * 19 / 10;  // no room for two
  reset_memory_peaks();
  script.at("first", 2, [&](Trainer& trainer, TrainingJob&) {
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    jobs.push_back(run.job(1, specs[1]));
    jobs.push_back(run.job(2, specs[2]));
    trainer.add_jobs(std::move(jobs));
    trainer.set_priority(Script::job(trainer, "third"), 5);
    for (const char* name : {"second", "third"}) {
      const JobState& state = Script::job(trainer, name).state();
      EXPECT_EQ(state.status, JobStatus::waiting) << name;
      EXPECT_THAT(state.wait_reason, HasSubstr("memory: it and the running job would take")) << name;
    }
  });
  script.at("first", 4, [&](Trainer& trainer, TrainingJob& job) {
    trainer.pause_job(job);  // its place goes to the one of higher priority
    EXPECT_EQ(Script::job(trainer, "third").state().status, JobStatus::running);
    EXPECT_EQ(Script::job(trainer, "third").state().wait_reason, "");
    EXPECT_EQ(Script::job(trainer, "second").state().status, JobStatus::waiting);
    trainer.cancel_job(Script::job(trainer, "second"));
    trainer.resume_job(job);
    EXPECT_EQ(job.state().status, JobStatus::waiting) << "an equal is not put out for it";
  });
  auto trainer = run.trainer({specs[0]}, options);
  trainer->run();
  EXPECT_TRUE(script.is_done());
  EXPECT_LE(memory_usage().peak_held_bytes, options.tensor_limit_bytes);
  expect_same_jobs(run, undisturbed, {"first", "third"});
  EXPECT_EQ(trainer->jobs()[1]->state().status, JobStatus::cancelled);
}

TEST(RunControlled, AJobMakesWayForOneOfHigherPriorityAndEndsAsOneThatNeverDid) {
  SKIP_ON_A_DEVICE() << "limits and counts the host's tensors";
  std::vector<JobSpec> specs{small_job("low", AdapterMethod::lora, 1, 6), small_job("equal", AdapterMethod::lora, 2, 3),
                             small_job("high", AdapterMethod::lora, 3, 3)};
  for (JobSpec& spec : specs) spec.adapter.r = 512;
  specs[2].priority = 1;
  const Undisturbed undisturbed(specs, at::kFloat);
  SmallRun run("makes-way");
  const int64_t one_job = peak_of_run(run, {specs[0]});
  Script script;
  TrainerOptions options = with(script);
  options.tensor_limit_bytes = memory_usage().held_bytes + one_job * 19 / 10;  // no room for two
  const auto status = [](Trainer& trainer, const char* name) { return Script::job(trainer, name).state().status; };
  const auto add = [&](Trainer& trainer, size_t index) {
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    jobs.push_back(run.job(index, specs[index]));
    trainer.add_jobs(std::move(jobs));
  };
  script.at("low", 2, [&](Trainer& trainer, TrainingJob& low) {
    add(trainer, 1);
    EXPECT_EQ(status(trainer, "equal"), JobStatus::waiting) << "equal priority puts nobody out";
    add(trainer, 2);
    EXPECT_EQ(status(trainer, "high"), JobStatus::running);
    EXPECT_EQ(low.state().status, JobStatus::waiting);
    EXPECT_THAT(low.state().wait_reason, HasSubstr("memory: it and the running job would take"));
    EXPECT_FALSE(low.is_loaded());
  });
  script.at("high", 2, [&](Trainer& trainer, TrainingJob&) {
    trainer.set_priority(Script::job(trainer, "equal"), 2);
    EXPECT_EQ(status(trainer, "equal"), JobStatus::running);
    EXPECT_EQ(status(trainer, "high"), JobStatus::waiting);
  });
  run.trainer({specs[0]}, options)->run();
  EXPECT_TRUE(script.is_done());
  expect_same_jobs(run, undisturbed, {"low", "equal", "high"});
}

/// `fails`, which its learning rate ends, and `low`, for which there is memory beside it; then `high`, for which there is none beside another and
/// which goes before `low`. `low` is evaluated after each step.
std::vector<JobSpec> one_fails_beside_one_that_makes_way(double learning_rate) {
  std::vector<JobSpec> specs{small_job("fails", AdapterMethod::lora, 1, 4), small_job("high", AdapterMethod::lora, 2, 3),
                             small_job("low", AdapterMethod::lora, 3, 4)};
  specs[0].adapter.r = specs[2].adapter.r = 200;
  specs[1].adapter.r = 400;
  specs[0].priority = specs[1].priority = 1;
  specs[0].train.learning_rate = learning_rate;
  specs[2].train.eval_steps = 1;
  return specs;
}

TEST(RunControlled, AJobThatMakesWayInTheMiddleOfARoundIsEvaluatedWhenItComesBack) {
  SKIP_ON_A_DEVICE() << "limits and counts the host's tensors";
  std::vector<JobSpec> specs = one_fails_beside_one_that_makes_way(1e300);
  const Undisturbed undisturbed({specs[1], specs[2]});
  SmallRun run("middle", dtype());
  const int64_t high = peak_of_run(run, {specs[1]});
  std::vector<std::string> started;
  class Starts : public RunObserver {
   public:
    explicit Starts(std::vector<std::string>& names) : names_(names) {}
    void on_job_started(const TrainingJob& job) override { names_.push_back(job.spec().name); }

   private:
    std::vector<std::string>& names_;
  } observer(started);
  TrainerOptions options;
  options.policy.token_budget = 256;
  options.tensor_limit_bytes = memory_usage().held_bytes + high * 5 / 4;  // for the large one alone, or both others
  options.observers = {&observer};
  auto trainer = run.trainer(specs, options);
  trainer->run();
  // When the first one fails, `low` has made a step, is about to be evaluated, and is put out.
  EXPECT_THAT(started, ::testing::ElementsAre("fails", "low", "high", "low"));
  EXPECT_EQ(trainer->jobs()[0]->state().status, JobStatus::failed);
  EXPECT_EQ(trainer->jobs()[2]->state().last_eval_step, 4);
  expect_same_jobs(run, undisturbed, {"high", "low"});
}

/// A job that fails at its evaluation has others make way that have been evaluated and not been saved.
TEST(RunControlled, AJobThatMakesWayBeforeItIsSavedKeepsItsBest) {
  SKIP_ON_A_DEVICE() << "limits and counts the host's tensors";
  std::vector<JobSpec> specs = one_fails_beside_one_that_makes_way(1e30);  // queries times keys are beyond f32
  specs[0].train.eval_steps = 1;
  specs[2].train.load_best = true;
  SmallRun run("keeps-best");
  const int64_t high = peak_of_run(run, {specs[1]});
  struct Waits : RunObserver {
    void on_job_waiting(const TrainingJob& job) override {
      if (job.spec().name != "low" || job.state().step != 1) return;
      ++times;
      const auto best = best_checkpoint(job.folder());
      ASSERT_TRUE(best);
      EXPECT_EQ(read_checkpoint_state(*best).step, 1);
    }
    int times = 0;
  } observer;
  TrainerOptions options;
  options.policy.token_budget = 256;
  options.tensor_limit_bytes = memory_usage().held_bytes + high * 5 / 4;  // for the large one alone, or both others
  options.observers = {&observer};
  const auto trainer = run.trainer(specs, options);
  trainer->run();
  EXPECT_THAT(trainer->jobs()[0]->state().failure, HasSubstr("the held-out loss is not finite"));
  EXPECT_GT(observer.times, 0);
}

TEST(RunControlled, AJobThatCanNeverFitIsKnownBeforeItIsAdded) {
  SKIP_ON_A_DEVICE() << "limits and counts the host's tensors";
  SmallRun run("never");
  JobSpec large = small_job("large", AdapterMethod::lora, 2, 4);
  large.adapter.r = 4096;
  Script script;
  script.at("small", 1, [&](Trainer& trainer, TrainingJob&) {
    EXPECT_THAT(trainer.reason_never_to_fit(*run.job(1, large)).value_or("fits"), HasSubstr("it is exceeded at"));
    EXPECT_EQ(trainer.reason_never_to_fit(*run.job(1, small_job("tiny", AdapterMethod::lora, 1, 2))), std::nullopt);
  });
  TrainerOptions options = with(script);
  release_unused_memory();
  options.tensor_limit_bytes = memory_usage().held_bytes + (int64_t{1} << 23);
  run.trainer({small_job("small", AdapterMethod::lora, 1, 2)}, options)->run();
  EXPECT_TRUE(script.is_done());
}

TEST(RunControlled, OnRanksJobsComeLeaveAndPauseAsOnOne) {
  const std::vector<JobSpec> specs = busy_jobs(9);
  SmallRun one("one", at::kDouble), two("two", at::kDouble);
  TrainerOptions alone;
  alone.policy.token_budget = 256;
  one.trainer(specs, alone)->run();
  Script script;
  script.at("plain", 4, [&](Trainer& trainer, TrainingJob& job) {  // boundaries are every four rounds
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    jobs.push_back(two.job(2, specs[2]));
    jobs.push_back(two.job(3, specs[3]));
    jobs.push_back(two.job(4, small_job("unwanted", AdapterMethod::lora, 9, 9)));
    trainer.add_jobs(std::move(jobs));
    trainer.pause_job(job);
  });
  script.at("unwanted", 4, [](Trainer& trainer, TrainingJob& job) {
    trainer.cancel_job(job);
    trainer.resume_job(Script::job(trainer, "plain"));
  });
  TrainerOptions options = with(script);
  options.ranks = 2;
  options.rounds_at_once = 2;
  auto trainer = two.trainer({specs[0], specs[1]}, options);
  trainer->run();
  EXPECT_TRUE(script.is_done());
  expect_equal_adapters(two, one, specs);
}

/// For each stretch of training rounds without a flush: the jobs in it, and how many rounds.
class Stretches : public RunObserver {
 public:
  void on_ranks(const ReplicaPlans& plans, const RankTimes&, double, bool is_evaluation) override {
    if (is_evaluation) return;
    std::set<int32_t> jobs;
    for (const StepPlan& plan : plans.replicas.front().rounds) {
      for (const BatchShape& batch : plan.batches) jobs.insert(batch.job);
    }
    found.emplace_back(std::move(jobs), plans.replicas.front().rounds.size());
  }
  std::vector<std::pair<std::set<int32_t>, size_t>> found;
};

TEST(RunControlled, OnRanksTheFirstRoundWithAJobThatComesIsByItself) {
  SmallRun run("first-round", at::kDouble);
  Script script;
  script.at("here", 8, [&](Trainer& trainer, TrainingJob&) {
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    jobs.push_back(run.job(1, small_job("comes", AdapterMethod::lora, 2, 40)));
    trainer.add_jobs(std::move(jobs));
  });
  Stretches stretches;
  TrainerOptions options = with(script);
  options.ranks = 2;
  options.observers = {&stretches};
  run.trainer({small_job("here", AdapterMethod::lora, 1, 80)}, options)->run();
  ASSERT_TRUE(script.is_done());
  const auto first = std::ranges::find_if(stretches.found, [](const auto& stretch) { return stretch.first.contains(1); });
  ASSERT_NE(first, stretches.found.end());
  EXPECT_GT(std::prev(first)->second, 1u);
  EXPECT_EQ(first->second, 1u);
  EXPECT_GT(std::next(first)->second, 1u) << "its time is known";
}

}  // namespace
}  // namespace cotune::testing
