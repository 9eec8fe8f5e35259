// Jobs on several ranks that pause, or make way for one of higher priority, and go on: to the bit what they become undisturbed on
// the same ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "ops/backend.h"
#include "ops/memory.h"
#include "train/checkpoint.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

using ::testing::HasSubstr;

/// A run on threads that divide the model in one way.
class RanksRun {
 public:
  RanksRun(const std::string& name, const std::string& degrees, at::ScalarType compute = at::kDouble) : run(name, compute) {
    options.parallel = *parse_parallel(degrees);
    options.ranks = options.parallel.ranks();
    options.rounds_at_once = 2;
    options.policy.token_budget = 256;
    if (options.parallel.divides_layers()) options.parts[2] = small_parts(2, compute);
    if (options.parallel.replicas.front().tensor == 2) run.backbone = options.parts[2].front();
  }

  /// between: called between rounds, until it returns true.
  void train(const std::vector<JobSpec>& specs, const std::function<bool(Trainer&)>& between = [](Trainer&) { return true; }) {
    bool is_done = false;
    options.between_rounds = [&](Trainer& trainer) { is_done = is_done || between(trainer); };
    const auto trainer = run.trainer(specs, options);
    EXPECT_FALSE(trainer->run().interrupted);
    EXPECT_TRUE(is_done);
    for (size_t i = 0; i < specs.size(); ++i) EXPECT_EQ(trainer->jobs()[i]->state().status, JobStatus::finished) << specs[i].name;
  }

  void add(Trainer& trainer, const JobSpec& spec) const {
    std::vector<std::unique_ptr<TrainingJob>> jobs;
    jobs.push_back(run.job(trainer.jobs().size(), spec));
    trainer.add_jobs(std::move(jobs));
  }

  SmallRun run;
  TrainerOptions options;
};

/// In f64. Which jobs share a round decides which replica has a row, and where ATen cuts a product: jobs that pause together keep
/// the company that they had.
class OnRanks : public ::testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Divided, OnRanks, ::testing::Values("pp=2", "tp=2", "pp=2,tp=2", "dp=2", "dp=1,len=25+pp=2", "dp=1+tp=2"),
                         [](const auto& info) {
                           std::string name;
                           for (const char letter : std::string(info.param)) name += std::isalnum(letter) != 0 ? letter : '_';
                           return name;
                         });

std::vector<JobSpec> jobs_that_pause() {
  std::vector<JobSpec> specs = mixed_jobs(7);
  specs.pop_back();  // whose rows are cut
  specs[0].train.max_grad_norm = 0.5;
  return specs;
}

TEST_P(OnRanks, PausedJobsEndWithTheBitsOfThoseThatWereNeverPaused) {
  const std::vector<JobSpec> specs = jobs_that_pause();
  RanksRun whole("whole", GetParam()), paused("paused", GetParam());
  whole.train(specs);
  paused.train(specs, [&](Trainer& trainer) {
    const auto& jobs = trainer.jobs();
    if (jobs[0]->state().step < 3) return false;
    if (jobs.size() == specs.size()) {
      for (size_t i = 0; i < specs.size(); ++i) {
        trainer.pause_job(*jobs[i]);
        EXPECT_FALSE(jobs[i]->is_loaded());
        EXPECT_TRUE(latest_checkpoint(jobs[i]->folder()));
      }
      paused.add(trainer, small_job("visitor", AdapterMethod::lora, 9, 9));
    }
    if (jobs.back()->state().step < 3) return false;
    trainer.cancel_job(*jobs.back());
    for (size_t i = 0; i < specs.size(); ++i) {
      EXPECT_LT(jobs[i]->state().step, 7);
      trainer.resume_job(*jobs[i]);
    }
    return true;
  });
  for (const JobSpec& spec : specs) expect_same_adapter(adapter_bytes(paused.run, spec.name), adapter_bytes(whole.run, spec.name), spec.name);
}

TEST_P(OnRanks, AJobThatMadeWayForOneOfHigherPriorityEndsWithTheBitsOfOneThatNeverDid) {
  SKIP_ON_A_DEVICE() << "limits and counts the host's tensors";
  std::vector<JobSpec> specs{small_job("low", AdapterMethod::lora, 1, 6), small_job("high", AdapterMethod::lora, 2, 3)};
  for (JobSpec& spec : specs) spec.adapter.r = 512;
  specs[0].adapter.dropout = 0.2;
  specs[1].priority = 1;
  RanksRun low("low", GetParam()), high("high", GetParam()), both("both", GetParam());
  release_unused_memory();
  const int64_t before = memory_usage().held_bytes;
  reset_memory_peaks();
  low.train({specs[0]});
  const int64_t one_job = memory_usage().peak_held_bytes - before;
  high.train({specs[1]});
  release_unused_memory();
  both.options.tensor_limit_bytes = memory_usage().held_bytes + one_job * 3 / 2;  // no room for two
  reset_memory_peaks();
  both.train({specs[0]}, [&](Trainer& trainer) {
    if (trainer.jobs()[0]->state().step < 2) return false;
    both.add(trainer, specs[1]);
    const JobState& put_out = trainer.jobs()[0]->state();
    EXPECT_EQ(trainer.jobs()[1]->state().status, JobStatus::running);
    EXPECT_EQ(put_out.status, JobStatus::waiting);
    EXPECT_EQ(put_out.step, 3) << "at its next boundary: the first round runs by itself, then two at once";
    EXPECT_THAT(put_out.wait_reason, HasSubstr("memory: it and the running job would take"));
    EXPECT_FALSE(trainer.jobs()[0]->is_loaded());
    return true;
  });
  EXPECT_LE(memory_usage().peak_held_bytes, both.options.tensor_limit_bytes);
  EXPECT_EQ(adapter_bytes(both.run, "low"), adapter_bytes(low.run, "low"));
  EXPECT_EQ(adapter_bytes(both.run, "high"), adapter_bytes(high.run, "high"));
}

/// Where no row is dealt, our own kernels give equal bits in any company.
TEST(OnRanksWithoutReplicas, APausedJobChangesNoBitOfThoseThatGoOn) {
  SKIP_ON_A_DEVICE() << "promises agreement within rounding";
  if (kernel_isa(at::kFloat, at::kCPU) == kernels::Isa::none) GTEST_SKIP() << "ATen cuts products by company";
  const std::vector<JobSpec> specs = mixed_jobs(10);
  for (const char* degrees : {"pp=2", "tp=2", "pp=2,tp=2"}) {
    RanksRun whole("whole", degrees, at::kFloat), paused("paused", degrees, at::kFloat);
    whole.train(specs);
    paused.train(specs, [&](Trainer& trainer) {
      TrainingJob &sparse = *trainer.jobs()[2], &other = *trainer.jobs()[0];
      if (sparse.state().step < 2) return false;
      if (sparse.is_loaded()) trainer.pause_job(sparse);
      if (other.state().step < 7) return false;
      EXPECT_EQ(sparse.state().step, 3) << "its first step by itself, then two at once";
      trainer.resume_job(sparse);
      return true;
    });
    EXPECT_EQ(finished_adapters(paused.run, specs), finished_adapters(whole.run, specs)) << degrees;
  }
}

}  // namespace
}  // namespace cotune::testing
