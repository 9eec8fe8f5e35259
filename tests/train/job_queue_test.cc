// The life of jobs under a limit (mLoRA §3.1, ML-4): queue, admission, training, files, and the profiler that learns from them meanwhile.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "engine/memory_facts.h"
#include "ops/memory.h"
#include "schedule/memory/peak_memory.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

/// What happens to every job, in order, with what the run had learned of peaks by then.
class Lifecycles : public RunObserver {
 public:
  explicit Lifecycles(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void on_job_started(const TrainingJob& job) override {
    note("start", job);
    EXPECT_FALSE(has_adapter(job));
    corrections_at_starts.push_back(correction_);
    samples_at_starts.push_back(samples_);
  }
  void on_job_waiting(const TrainingJob& job) override { note("wait", job); }
  void on_step(const StepEvent& event) override {
    if (event.job->state().step == 1) note("first step", *event.job);
  }
  void on_job_ended(const TrainingJob& job) override {
    EXPECT_EQ(job.state().status, JobStatus::finished);
    EXPECT_TRUE(has_adapter(job)) << "saved by the time that it is told to have ended";
    note("end", job);
  }
  void on_peak(const PeakEvent& event) override {
    correction_ = event.correction_bytes;
    samples_ = event.errors.rounds;
    rounds.push_back(event.round);
  }

  std::vector<std::string> events;
  std::vector<int64_t> corrections_at_starts, samples_at_starts, rounds;

 private:
  void note(const char* what, const TrainingJob& job) { events.push_back(std::string(what) + " " + job.spec().name); }
  bool has_adapter(const TrainingJob& job) const {
    return std::filesystem::exists(folder_ / "jobs" / job.spec().name / "adapter" / "adapter_model.safetensors");
  }
  const std::filesystem::path folder_;
  int64_t correction_ = 0, samples_ = 0;
};

/// The bound that admission begins with on one rank.
int64_t admission_bound(const SmallRun& run, const std::vector<JobSpec>& specs, PackingPolicy policy) {
  release_unused_memory();
  MemoryFacts facts = memory_facts(at::kFloat, at::kCPU);
  facts.weight_bytes = memory_usage().held_bytes;
  std::vector<JobFootprint> jobs;
  for (size_t i = 0; i < specs.size(); ++i) jobs.push_back(run.job(i, specs[i])->footprint());
  policy.layer_count = small_config().layer_count;
  return predict_memory(small_config(), jobs, policy, facts).total();
}

TEST(JobQueue, OfThreeJobsWithRoomForTwoTakesEachFromWaitingToItsFileAndLearnsMeanwhile) {
  SKIP_ON_A_DEVICE() << "limits the host's memory";
  std::vector<JobSpec> specs{small_job("short", AdapterMethod::lora, 1, 8), small_job("long-lived", AdapterMethod::lora, 2, 16),
                             small_job("late", AdapterMethod::lora, 3, 8)};
  for (JobSpec& spec : specs) spec.adapter.r = 192;  // which weighs more than all that rounds take
  SmallRun run("queue");
  Lifecycles lives(run.folder);
  TrainerOptions options;
  options.policy.token_budget = 128;
  options.observers = {&lives};
  options.tensor_limit_bytes = admission_bound(run, {specs[0], specs[1]}, options.policy);
  EXPECT_GT(admission_bound(run, specs, options.policy), options.tensor_limit_bytes);
  reset_memory_peaks();
  const RunSummary summary = run.trainer(specs, options)->run();
  EXPECT_LE(memory_usage().peak_held_bytes, options.tensor_limit_bytes);

  const auto place = [&](const std::string& event) {
    EXPECT_EQ(std::ranges::count(lives.events, event), 1) << event;
    return std::ranges::find(lives.events, event) - lives.events.begin();
  };
  for (const JobSpec& spec : specs) {
    EXPECT_LT(place("start " + spec.name), place("first step " + spec.name));
    EXPECT_LT(place("first step " + spec.name), place("end " + spec.name));
  }
  EXPECT_LT(std::ranges::find(lives.events, "wait late") - lives.events.begin(), place("end short")) << "it is told to wait";
  EXPECT_LT(place("end short"), place("start late")) << "and starts in the room of one that has ended";
  EXPECT_LT(place("start late"), place("end long-lived")) << "beside the other";

  ASSERT_EQ(lives.corrections_at_starts.size(), 3u);
  EXPECT_EQ(lives.corrections_at_starts.front(), 0) << "nothing was measured";
  EXPECT_NE(lives.corrections_at_starts.back(), 0) << "the model that the last job was admitted by is another";
  EXPECT_GT(summary.peak_prediction_errors.rounds, lives.samples_at_starts.back()) << "rounds go on to be measured";
  EXPECT_TRUE(std::ranges::is_sorted(lives.rounds));
}

}  // namespace
}  // namespace cotune::testing
