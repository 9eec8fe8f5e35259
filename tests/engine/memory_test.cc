// Memory of training, counted: nothing grows, jobs pay for themselves alone, the backbone is held once.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "engine/memory_facts.h"
#include "engine/random_job.h"
#include "engine/reference_job.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/memory/resident_memory.h"

namespace cotune::testing {
namespace {

class Memory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  void SetUp() override {
    if (!test_device().is_cpu()) GTEST_SKIP() << "counts the host's memory";
  }
};

struct Growth {
  MemoryUsage before = memory_usage();
  int64_t operator[](MemoryKind kind) const { return memory_usage()[kind] - before[kind]; }
};

TEST_F(Memory, OfAdaptersGradientsAndMomentsIsExact) {
  const ModelConfig config = kernel_friendly_config();
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    for (RandomJob job : {lora_job("lora", 1, 5, 0.1, {"all-linear"}, {9}),
                          bottleneck_job("bottleneck", 2, 6, Activation::relu, {9})}) {
      for (const int64_t moments : {2, 1, 0}) {
        job.optimizer.kind = moments == 2 ? OptimizerKind::adamw : OptimizerKind::sgd;
        job.optimizer.momentum = moments == 1 ? 0.9 : 0;
        const Growth growth;
        const auto adapter = job.make_adapter(config, compute);
        const int64_t bytes = 4 * adapter->parameter_count();
        EXPECT_EQ(growth[MemoryKind::gradients], bytes) << job.name;
        EXPECT_EQ(growth[MemoryKind::optimizer], moments * bytes) << job.name;
        JobFootprint footprint{.moment_count = moments, .row_count = 1, .longest_row = 9};
        for (const AdaptedModule& module : adapter->setup().modules) {
          footprint.adapters.push_back({0, adapter->method(), module.layer, module.projection, module.r, 0});
        }
        const MemoryEstimate estimate = resident_bytes(config, footprint, memory_facts(compute, at::kCPU));
        EXPECT_EQ(growth[MemoryKind::gradients], estimate.gradients);
        EXPECT_EQ(growth[MemoryKind::optimizer], estimate.optimizer);
        EXPECT_EQ(growth[MemoryKind::adapters], estimate.adapters) << job.name << " " << compute;
      }
    }
  }
}

TEST_F(Memory, OfDiffPruningIsThatOfItsKeptEntries) {
  const auto backbone = random_backbone(kernel_friendly_config(), at::kBFloat16);
  Interpreter interpreter(backbone);
  const RandomJob job = diff_pruning_job("diff", 3, 0.05, {64});
  const Growth growth;
  const auto adapter = job.make_adapter(backbone->config(), backbone->compute());
  select_alone(interpreter, job, *adapter);
  const int64_t entries = adapter->parameter_count();
  double share = 0;  // of every weight that is adapted
  for (const AdaptedModule& module : adapter->setup().modules) {
    const ProjectionSize shape = projection_size(backbone->config(), module.projection);
    share += 0.05 * static_cast<double>(shape.in * shape.out);
  }
  EXPECT_NEAR(static_cast<double>(entries), share, static_cast<double>(adapter->setup().modules.size()));  // rounded
  const int64_t resident = growth[MemoryKind::adapters] + growth[MemoryKind::gradients] + growth[MemoryKind::optimizer];
  const int64_t needed = entries * (4 + 4 + 8 + 4);  // value, gradient, two moments, row index
  EXPECT_GE(resident, needed);
  EXPECT_LE(resident, needed * 11 / 10);
  EXPECT_EQ(growth[MemoryKind::optimizer], 8 * entries);
  EXPECT_EQ(growth[MemoryKind::gradients], 4 * entries);
}

TEST_F(Memory, OfTheBackboneIsHeldOnceWhateverTheJobs) {  // ML-2, ML-15
  const ModelConfig config = kernel_friendly_config();
  const Growth loading;
  const auto backbone = random_backbone(config, at::kBFloat16);
  const int64_t weights = loading[MemoryKind::weights];
  EXPECT_GE(weights, 2 * parameter_count(config));
  Interpreter interpreter(backbone);
  std::vector<RandomJob> jobs;
  for (uint64_t i = 0; i < 16; ++i) {
    jobs.push_back(lora_job("job", i + 1, 8, 0.1, {"all-linear"}, {64}));
    jobs.back().steps = 1;
  }
  const Growth growth;
  std::vector<std::unique_ptr<JobLife>> lives;
  int64_t one_job = 0;
  for (const size_t count : {1, 4, 16}) {
    while (lives.size() < count) {
      lives.push_back(std::make_unique<JobLife>(static_cast<int32_t>(lives.size()), jobs[lives.size()], *backbone));
    }
    int64_t resident = 0;
    for (const MemoryKind kind : {MemoryKind::adapters, MemoryKind::gradients, MemoryKind::optimizer}) resident += growth[kind];
    if (count == 1) one_job = resident;
    EXPECT_EQ(resident, static_cast<int64_t>(count) * one_job);
    std::vector<JobLife*> pending;
    for (const auto& life : lives) {
      if (!life->done()) pending.push_back(life.get());
    }
    reset_memory_peaks();
    run_lives(interpreter, pending, {});  // trains them together
    EXPECT_EQ(memory_usage().peak_bytes[static_cast<size_t>(MemoryKind::weights)], loading.before[MemoryKind::weights] + weights)
        << count << " adapters";
  }
}

/// A job whose row lengths differ in every step.
Batch changing_batch(uint64_t seed, int64_t step, int64_t vocabulary) {
  RandomJob job = lora_job("", seed + static_cast<uint64_t>(step) * 100, 4, 0, {"q_proj"}, {});
  for (uint64_t row = 0; row < 4; ++row) {
    job.row_lengths.push_back(1 + static_cast<int64_t>(uniform_below(mix_key(seed, static_cast<uint64_t>(step)), row, 300)));
  }
  return job.batch(0, vocabulary);
}

TEST_F(Memory, DoesNotGrowOverStepsOfChangingLengths) {
  const auto backbone = random_backbone(kernel_friendly_config(), at::kBFloat16);
  Interpreter interpreter(backbone);
  std::vector<RandomJob> jobs{lora_job("a", 1, 4, 0.2, {"all-linear"}, {}), bottleneck_job("b", 2, 8, Activation::gelu, {}),
                              lora_job("c", 3, 16, 0.0, {"all-linear"}, {})};
  std::vector<std::unique_ptr<Adapter>> adapters;
  for (const RandomJob& job : jobs) adapters.push_back(job.make_adapter(backbone->config(), at::kBFloat16));
  const auto run_step = [&](int64_t step) {
    std::vector<Batch> batches;
    for (size_t i = 0; i < jobs.size(); ++i) {
      batches.push_back(changing_batch(i, step, backbone->config().vocabulary_size));
    }
    std::vector<JobRound> rounds;
    for (size_t i = 0; i < jobs.size(); ++i) {
      JobRound round;
      round.job = static_cast<int32_t>(i);
      round.adapter = adapters[i].get();
      round.batch = &batches[i];
      round.optimizer = jobs[i].optimizer;
      round.optimizer.step = step + 1;
      rounds.push_back(round);
    }
    run_round(interpreter, rounds, {.token_budget = 256});
  };
  std::vector<int64_t> live, held;
  release_unused_memory();
  reset_memory_peaks();
  for (int64_t step = 0; step < 300; ++step) {
    run_step(step);
    live.push_back(memory_usage().live_bytes());
    held.push_back(memory_usage().held_bytes);
  }
  EXPECT_EQ(live.front(), live.back());
  // Once rounds nearly as large as the largest have been, nothing is asked of the system any more.
  EXPECT_LE(static_cast<double>(held.back()), 1.15 * static_cast<double>(held[30]));
  EXPECT_LE(static_cast<double>(held.back()), 1.03 * static_cast<double>(held[150]));
}

TEST_F(Memory, OfActivationsIsSmallerWhereLowerLayersHaveNoAdapters) {
  if (kernel_isa(at::kBFloat16, at::kCPU) == kernels::Isa::none) {
    GTEST_SKIP() << "ATen's attention scores take more than what the layers keep";
  }
  const ModelConfig config = kernel_friendly_config(6);
  const auto backbone = random_backbone(config, at::kBFloat16);
  Interpreter interpreter(backbone);
  const auto peak_of = [&](std::vector<int64_t> layers, bool recompute) {
    RandomJob job = lora_job("job", 1, 4, 0, {"all-linear"}, {200, 200, 200});
    job.adapter.layers_to_transform = std::move(layers);
    const auto adapter = job.make_adapter(config, at::kBFloat16);
    gradients_of(interpreter, {&job}, {adapter.get()}, {.recompute = recompute});
    reset_memory_peaks();
    gradients_of(interpreter, {&job}, {adapter.get()}, {.recompute = recompute});
    return memory_usage().peak_bytes[static_cast<size_t>(MemoryKind::activations)];
  };
  const int64_t all = peak_of({}, false), upper = peak_of({4, 5}, false), recomputed = peak_of({}, true);
  EXPECT_LT(upper, all / 2);
  EXPECT_LT(recomputed, all / 2);
}

TEST_F(Memory, LimitStopsARoundAndLeavesTheJobsAsTheyWere) {
  const auto backbone = random_backbone(kernel_friendly_config(), at::kBFloat16);
  Interpreter interpreter(backbone);
  const RandomJob job = lora_job("job", 1, 4, 0.1, {"all-linear"}, {200, 400, 30});
  JobLife life(0, job, *backbone);
  const std::vector<at::Tensor> before = values_of(life.adapter());
  release_unused_memory();
  const JobRound round = life.next_round();
  set_memory_limit(memory_usage().held_bytes + 200'000);
  EXPECT_THROW(run_round(interpreter, {round}, {}), MemoryLimitExceeded);
  set_memory_limit(0);
  EXPECT_EQ(difference_in_bits(values_of(life.adapter()), before), "");
  for (const Parameter& parameter : life.adapter().parameters()) EXPECT_EQ(parameter.gradient.abs().sum().item<double>(), 0);
  JobLife untouched(0, job, *backbone);
  run_lives(interpreter, {&life}, {});
  run_lives(interpreter, {&untouched}, {});
  EXPECT_EQ(difference_in_bits(values_of(life.adapter()), values_of(untouched.adapter())), "");
}

}  // namespace
}  // namespace cotune::testing
