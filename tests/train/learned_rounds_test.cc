// Eq. 5 of mLoRA on real rounds: bytes counted by the allocator, rows of random lengths, errors on rounds that the fit has not seen.

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/memory/learned_peak.h"
#include "schedule/pipeline/alive_tokens.h"
#include "train/small_run.h"

namespace cotune::testing {
namespace {

/// What every round had alive and took, as the trainer itself observes it.
class RealRounds : public RunObserver {
 public:
  void on_plan(const StepPlan& plan, std::span<const JobRound> rounds) override {
    alive_ = alive_at_most(plan);
    selects_ = std::any_of(rounds.begin(), rounds.end(), [](const JobRound& round) { return round.purpose == RoundPurpose::select; });
    before_ = memory_usage().live_bytes();
  }
  void on_round_ended(double) override {
    if (selects_) return;
    samples.push_back({static_cast<double>(alive_.alive_tokens), static_cast<double>(alive_.chain_tokens),
                       static_cast<double>(memory_usage().recent_peak_live_bytes - before_)});
  }
  std::vector<FittedSample> samples;

 private:
  WorstCase alive_;
  int64_t before_ = 0;
  bool selects_ = false;
};

std::vector<JobSpec> jobs_of_every_method() {
  std::vector<JobSpec> specs{small_job("plain", AdapterMethod::lora, 1, 50), small_job("bottleneck", AdapterMethod::bottleneck, 2, 50),
                             small_job("sparse", AdapterMethod::diff_pruning, 3, 50)};
  for (JobSpec& spec : specs) spec.train.batch_size = 6;
  return specs;
}

std::vector<FittedSample> rounds_of(const std::string& name, const std::vector<JobSpec>& specs) {
  SmallRun run("learned-" + name);
  run.change_data = [](const JobSpec& spec, JobData& data) { data.train = small_data(spec.train.seed + 70, 300, 200); };
  RealRounds observed;
  TrainerOptions options;
  options.observers = {&observed};
  run.trainer(specs, options)->run();
  return observed.samples;
}

/// Mean |bytes − predicted| / bytes over all rounds after the 23rd, by a fit of the first `known`.
double held_out_error(const std::vector<FittedSample>& samples, size_t known) {
  constexpr size_t seen = 23;
  COTUNE_CHECK(samples.size() > 2 * seen);
  MemoryFit fit;
  for (size_t i = 0; i < known; ++i) fit.add(samples[i]);
  const MemoryFitResult result = fit.fit();
  double sum = 0;
  for (size_t i = seen; i < samples.size(); ++i) {
    sum += std::abs(samples[i].bytes - result.predict(samples[i].x1, samples[i].x2)) / samples[i].bytes;
  }
  return sum / static_cast<double>(samples.size() - seen);
}

class LearnedRounds : public ::testing::Test {
 protected:
  void SetUp() override {
    SKIP_ON_A_DEVICE() << "counts the host's tensors";
    // ATen's attention scores grow with the squares of rows, which tokens alive say nothing of.
    if (kernel_isa(at::kFloat, at::kCPU) == kernels::Isa::none) GTEST_SKIP() << "this processor takes ATen's operators";
  }
};

TEST_F(LearnedRounds, OfOneJobOfAnyMethodAreForetoldWithinAQuarterPercent) {
  for (const JobSpec& spec : jobs_of_every_method()) {
    const std::vector<FittedSample> samples = rounds_of(spec.name, {spec});
    EXPECT_LE(held_out_error(samples, 23), 0.0025) << spec.name;
    EXPECT_LE(held_out_error(samples, 3), 0.01) << spec.name;
  }
}

// Whose tokens are alive counts too, and is not among the measures: the paper's figure is not reached here.
TEST_F(LearnedRounds, OfUnlikeJobsTogetherAreForetoldWithinTenPercent) {
  const std::vector<FittedSample> samples = rounds_of("together", jobs_of_every_method());
  EXPECT_LE(held_out_error(samples, 23), 0.10);
}

}  // namespace
}  // namespace cotune::testing
