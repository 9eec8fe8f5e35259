// Runs of a model of four layers on as many stages: what a job leaves in memory when it has ended (mLoRA §3.2.1, ML-6), that where layers are cut
// changes no adapter, and jobs that share microbatches where there are more of them than stages (§3.3.1, ML-19).
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "ops/memory.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

/// SmallRun's data on a model of four layers, f64.
class FourLayers {
 public:
  explicit FourLayers(const std::string& name) : data_(name, at::kDouble) {
    config_.layer_count = 4;
    backbone_ = Backbone::load(random_model(config_, 5), at::kDouble, test_device());
  }

  std::unique_ptr<TrainingJob> job(size_t index, const JobSpec& spec) const {
    JobData data;
    data.train = small_data(key_of(spec.name), 20, 40);
    return std::make_unique<TrainingJob>(static_cast<int32_t>(index), spec, std::move(data), config_, at::kDouble, test_device(), "four",
                                         data_.folder / "jobs" / spec.name);
  }
  RunSummary run(const std::vector<JobSpec>& specs, TrainerOptions options) const {
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    for (size_t i = 0; i < specs.size(); ++i) jobs.push_back(job(i, specs[i]));
    options.device = test_compute_device();
    return Trainer(backbone_, std::move(jobs), std::move(options)).run();
  }
  std::string adapter(const JobSpec& spec) const { return adapter_bytes(data_, spec.name); }

 private:
  SmallRun data_;  ///< its folder
  ModelConfig config_ = small_config();
  std::shared_ptr<const Backbone> backbone_;
};

TrainerOptions on_stages(int64_t stages) {
  TrainerOptions options;
  options.ranks = stages;
  options.parallel = *parse_parallel(fmt::format("pp={}", stages));
  options.rounds_at_once = 1;
  options.policy.token_budget = 1024;
  return options;
}

int64_t resident_adapter_bytes() {
  const MemoryUsage usage = memory_usage();
  return usage[MemoryKind::adapters] + usage[MemoryKind::gradients] + usage[MemoryKind::optimizer];
}

TEST(FourStages, HaveTheBytesOfAJobBackWhenItHasEnded) {
  SKIP_ON_A_DEVICE() << "counts the host's tensors";
  const FourLayers four("bytes-back");
  const JobSpec stays = small_job("stays", AdapterMethod::lora, 1, 16);
  const std::vector<JobSpec> guests{small_job("lora", AdapterMethod::lora, 2, 3), small_job("bottleneck", AdapterMethod::bottleneck, 3, 3)};
  const int64_t before_run = resident_adapter_bytes();
  TrainerOptions options = on_stages(4);
  int64_t before = 0, calls = 0;
  std::vector<int64_t> with, after;
  options.between_rounds = [&](Trainer& trainer) {
    if (++calls < 3) return;  // the first round makes moments
    const int64_t bytes = resident_adapter_bytes();
    const size_t joined = trainer.jobs().size() - 1;
    if (joined == 0) {
      before = bytes;
    } else if (trainer.jobs().back()->state().status == JobStatus::running) {
      with.resize(joined, 0);
      with.back() = std::max(with.back(), bytes);
      return;
    } else if (after.size() < joined) {
      EXPECT_EQ(trainer.jobs().back()->state().status, JobStatus::finished);
      after.push_back(bytes);
    }
    if (joined == guests.size()) return;
    std::vector<std::unique_ptr<TrainingJob>> joins;
    joins.push_back(four.job(joined + 1, guests[joined]));
    trainer.add_jobs(std::move(joins));
  };
  four.run({stays}, options);
  ASSERT_EQ(with.size(), guests.size()) << "each was there";
  ASSERT_EQ(after.size(), guests.size()) << "and the other went on without it";
  for (size_t i = 0; i < guests.size(); ++i) {
    EXPECT_GT(with[i], before) << guests[i].name;
    EXPECT_EQ(after[i], before) << guests[i].name;
  }
  EXPECT_EQ(resident_adapter_bytes(), before_run);
}

TEST(FourStages, LeaveTheAdaptersOfOneAndTwoAfterTwentySteps) {
  std::vector<JobSpec> specs{small_job("plain", AdapterMethod::lora, 1, 20), small_job("bottleneck", AdapterMethod::bottleneck, 2, 20)};
  for (JobSpec& spec : specs) spec.train.batch_size = 1;
  specs[0].adapter.dropout = 0.2;
  specs[1].train.max_grad_norm = 0.5;
  std::map<int64_t, std::vector<std::string>> adapters;
  for (const int64_t stages : {1, 2, 4}) {
    const FourLayers four("twenty-steps");
    const RunSummary summary = four.run(specs, on_stages(stages));
    EXPECT_EQ(summary.ranks.size(), stages > 1 ? static_cast<size_t>(stages) : 0u);
    for (const JobSpec& spec : specs) adapters[stages].push_back(four.adapter(spec));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    for (const int64_t stages : {2, 4}) expect_close_adapter(adapters[stages][i], adapters[1][i], specs[i].name);
  }
}

/// Microbatches of each training round.
class CountsMicrobatches : public RunObserver {
 public:
  void on_plan(const StepPlan& plan, std::span<const JobRound>) override { counts.push_back(std::ssize(plan.microbatches)); }
  std::vector<int64_t> counts;
};

TEST(FourStages, FuseSixJobsIntoAsManyMicrobatchesThatTrainThemAsTheyTrainAlone) {
  std::vector<JobSpec> specs;
  for (uint64_t i = 0; i < 6; ++i) specs.push_back(small_job(fmt::format("job{}", i), AdapterMethod::lora, i + 1, 3));
  const auto run = [&](const FourLayers& four, const TrainerOptions& options, const std::vector<JobSpec>& jobs) {
    CountsMicrobatches counted;
    TrainerOptions own = options;
    own.observers = {&counted};
    four.run(jobs, own);
    return counted.counts;
  };
  TrainerOptions options = on_stages(4);
  options.pipeline_order = RankOrder::lorapp;
  const FourLayers fused("fused"), apart("apart"), alone("alone");
  options.policy.sharing = Sharing::temporal;
  EXPECT_EQ(run(apart, options, specs), std::vector<int64_t>(3, 6)) << "each job by itself";
  options.policy.sharing = Sharing::hybrid;
  options.fusion = TaskFusion::stages;
  EXPECT_EQ(run(fused, options, specs), std::vector<int64_t>(3, 4)) << "as many groups as stages, each in one microbatch";
  for (const JobSpec& spec : specs) {
    run(alone, on_stages(1), {spec});
    expect_close_adapter(fused.adapter(spec), alone.adapter(spec), spec.name);
  }
}

}  // namespace
}  // namespace cotune::testing
