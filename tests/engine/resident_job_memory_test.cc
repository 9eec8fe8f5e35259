// What a further job costs in a training step: its adapter, gradient and optimizer bytes.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/random_job.h"
#include "ops/memory.h"
#include "support/on_device.h"

namespace cotune::testing {
namespace {

int64_t resident_bytes() {
  const MemoryUsage usage = memory_usage();
  return usage[MemoryKind::adapters] + usage[MemoryKind::gradients] + usage[MemoryKind::optimizer];
}

/// Peaks of a training round with 1, 2, … jobs of these forms in turn, and what the newest job holds.
struct Peak {
  int64_t live = 0;
  int64_t of_newest_job = 0;
};
std::vector<Peak> peaks(const std::vector<RandomJob>& forms, int64_t job_count) {
  const auto backbone = random_backbone(kernel_friendly_config(), at::kBFloat16);
  Interpreter interpreter(backbone);
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<RandomJob> jobs;
  std::vector<Peak> result;
  for (int64_t count = 1; count <= job_count; ++count) {
    jobs.push_back(forms[static_cast<size_t>(count - 1) % forms.size()]);
    jobs.back().seed += static_cast<uint64_t>(count);
    const int64_t before = resident_bytes();
    adapters.push_back(jobs.back().make_adapter(backbone->config(), at::kBFloat16));
    select_alone(interpreter, jobs.back(), *adapters.back());
    const int64_t own = resident_bytes() - before;
    std::vector<Batch> batches;
    for (const RandomJob& job : jobs) batches.push_back(job.batch(0, backbone->config().vocabulary_size));
    std::vector<JobRound> rounds;
    for (size_t i = 0; i < jobs.size(); ++i) {
      JobRound round;
      round.job = static_cast<int32_t>(i);
      round.adapter = adapters[i].get();
      round.batch = &batches[i];
      round.optimizer = jobs[i].optimizer;
      round.optimizer.step = 1;
      rounds.push_back(round);
    }
    reset_memory_peaks();
    run_round(interpreter, rounds, {.token_budget = 256});
    result.push_back({memory_usage().peak_live_bytes, own});
  }
  return result;
}

TEST(ResidentJobs, CostTheirAdapterGradientAndOptimizerBytesWithinATenth) {
  SKIP_ON_A_DEVICE() << "counts the host's memory";
  install_counting_allocator();
  // Every batch fills microbatches by itself, so that the first job already has the largest one.
  const std::vector<int64_t> rows{128, 128};
  const std::vector<RandomJob> forms{lora_job("lora", 1, 32, 0.1, {"all-linear"}, rows),
                                     lora_job("upper", 2, 64, 0, {"q_proj", "down_proj"}, rows),
                                     bottleneck_job("bottleneck", 3, 96, Activation::gelu, rows),
                                     diff_pruning_job("diff", 4, 0.2, rows)};
  const std::vector<Peak> measured = peaks(forms, 10);
  int64_t grown = 0, own = 0;
  for (size_t i = forms.size(); i < measured.size(); ++i) {  // the first of each form brings its method's temporaries
    grown += measured[i].live - measured[i - 1].live;
    own += measured[i].of_newest_job;
    EXPECT_LE(measured[i].live - measured[i - 1].live, measured[i].of_newest_job * 11 / 10) << i + 1 << " jobs";
  }
  EXPECT_GE(grown, own * 9 / 10);
}

}  // namespace
}  // namespace cotune::testing
