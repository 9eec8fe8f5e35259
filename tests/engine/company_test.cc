// Jobs together against the same jobs one after another, over many steps and random mixes; what the frozen weights are
// afterwards (MX-7, ML-2, ML-3, LB-1, LB-2).

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <optional>

#include "base/random.h"
#include "engine/job_adapters.h"
#include "engine/memory_facts.h"
#include "engine/reference_job.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/memory/memory_shapes.h"
#include "support/on_device.h"

namespace cotune::testing {
namespace {

struct Trained {
  std::vector<std::vector<double>> losses;
  std::vector<std::vector<at::Tensor>> values;
};

Trained train(Interpreter& interpreter, const std::vector<RandomJob>& jobs, bool together) {
  std::vector<std::unique_ptr<JobLife>> lives;
  std::vector<JobLife*> pointers;
  for (const RandomJob& job : jobs) {
    lives.push_back(std::make_unique<JobLife>(static_cast<int32_t>(lives.size()), job, interpreter.stage().backbone()));
    pointers.push_back(lives.back().get());
    if (!together) run_lives(interpreter, {pointers.back()}, {});
  }
  if (together) run_lives(interpreter, pointers, {});
  Trained trained;
  for (const auto& life : lives) {
    EXPECT_EQ(life->failure(), "");
    trained.losses.push_back(life->losses());
    trained.values.push_back(values_of(life->adapter()));
  }
  return trained;
}

/// The larger of the two; not a number where either is none, which fails every comparison.
double larger(double a, double b) { return b <= a || std::isnan(a) ? a : b; }

/// The largest relative difference of a loss.
double largest_difference(const Trained& a, const Trained& b) {
  double worst = 0;
  for (size_t job = 0; job < a.losses.size(); ++job) {
    EXPECT_EQ(a.losses[job].size(), b.losses[job].size());
    for (size_t step = 0; step < a.losses[job].size(); ++step) {
      const double apart = std::abs(a.losses[job][step] - b.losses[job][step]);
      if (apart != 0) worst = larger(worst, apart / std::abs(b.losses[job][step]));  // a batch without labels has loss 0
    }
  }
  return worst;
}

/// The largest absolute difference of a parameter's value, and of an index that diff pruning keeps.
double largest_value_difference(const Trained& a, const Trained& b) {
  double worst = 0;
  for (size_t job = 0; job < a.values.size(); ++job) {
    for (size_t i = 0; i < a.values[job].size(); ++i) {
      const at::Tensor apart = a.values[job][i].to(at::kDouble) - b.values[job][i].to(at::kDouble);
      worst = larger(worst, apart.abs().max().item<double>());
    }
  }
  return worst;
}

std::vector<RandomJob> four_jobs(int64_t steps) {
  std::vector<RandomJob> jobs{
      lora_job("dropout", 1, 4, 0.3, {"all-linear"}, {20, 7}), lora_job("plain", 2, 2, 0, {"q_proj", "v_proj"}, {33}),
      bottleneck_job("bottleneck", 3, 6, Activation::silu, {5, 12, 3}), diff_pruning_job("diff", 4, 0.02, {16, 2})};
  for (RandomJob& job : jobs) job.steps = steps;
  return jobs;
}

/// What company may change after some steps: on a device products round by their shape, and AdamW turns a gradient that is
/// nearly nothing into a whole step.
struct Allowed {
  double loss, value;
};
Allowed allowed(at::ScalarType compute) {
  const bool device = !test_device().is_cpu();
  if (compute == at::kDouble) return device ? Allowed{1e-10, 1e-8} : Allowed{1e-12, 1e-10};
  return device ? Allowed{1e-4, 1e-3} : Allowed{1e-5, 1e-5};
}

TEST(Company, FiftyStepsTogetherAreThoseOfTheJobsAlone) {
  {
    Interpreter interpreter(tiny_backbone("llama3", at::kDouble));
    const Trained together = train(interpreter, four_jobs(50), true), alone = train(interpreter, four_jobs(50), false);
    EXPECT_LE(largest_difference(together, alone), allowed(at::kDouble).loss);
    EXPECT_LE(largest_value_difference(together, alone), allowed(at::kDouble).value);
  }
  const PortableKernels portable;
  Interpreter interpreter(tiny_backbone("llama3", at::kFloat));
  EXPECT_LE(largest_difference(train(interpreter, four_jobs(50), true), train(interpreter, four_jobs(50), false)),
            allowed(at::kFloat).loss);
}

// LobRA §2.1 (LB-1): three jobs of unequal batch and length, f32, on either path.
TEST(Company, TwentyJointStepsLeaveTheAdaptersOfSeparateRuns) {
  std::vector<RandomJob> jobs{lora_job("four rows", 1, 4, 0, {"all-linear"}, {20, 7, 33, 2}),
                              lora_job("one row", 2, 16, 0.1, {"q_proj", "v_proj"}, {61}),
                              lora_job("two rows", 3, 8, 0, {"all-linear"}, {12, 40})};
  for (RandomJob& job : jobs) {
    job.steps = 20;
    job.optimizer.learning_rate = 1e-3;
  }
  for (const bool portable : {false, true}) {
    std::optional<PortableKernels> scope;
    if (portable) scope.emplace();
    Interpreter interpreter(tiny_backbone("llama3", at::kFloat));
    const Trained together = train(interpreter, jobs, true), alone = train(interpreter, jobs, false);
    EXPECT_LE(largest_value_difference(together, alone), allowed(at::kFloat).value) << (portable ? "portable" : "our kernels");
    EXPECT_LE(largest_difference(together, alone), allowed(at::kFloat).loss) << (portable ? "portable" : "our kernels");
  }
}

/// Ranks 1 to 40, any targets and layers, one to four rows of 1 to 90 tokens, any method.
std::vector<RandomJob> random_jobs(uint64_t key, int64_t count) {
  static const std::vector<std::string> names{"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                              "gate_proj", "up_proj", "down_proj"};
  std::vector<RandomJob> jobs;
  for (int64_t i = 0; i < count; ++i) {
    uint64_t index = 0;
    const uint64_t own = mix_key(key, static_cast<uint64_t>(i));
    const auto draw = [&](uint64_t bound) { return uniform_below(own, ++index, bound); };
    std::vector<int64_t> lengths;
    for (uint64_t row = 0, rows = 1 + draw(4); row < rows; ++row) lengths.push_back(1 + static_cast<int64_t>(draw(90)));
    std::vector<std::string> targets;
    for (const std::string& name : names) {
      if (draw(2) == 0) targets.push_back(name);
    }
    if (targets.empty()) targets = {"all-linear"};
    const std::string name = "job " + std::to_string(i);
    switch (draw(4)) {
      case 0:
        jobs.push_back(bottleneck_job(name, own, 1 + static_cast<int64_t>(draw(40)), Activation::gelu, lengths));
        break;
      case 1:
        jobs.push_back(diff_pruning_job(name, own, 0.001 + 0.05 * uniform(own, 0), lengths));
        jobs.back().adapter.target_modules = targets;
        break;
      default:
        jobs.push_back(lora_job(name, own, 1 + static_cast<int64_t>(draw(40)), draw(2) * 0.25, targets, lengths));
    }
    if (draw(3) == 0) jobs.back().adapter.layers_to_transform = {static_cast<int64_t>(draw(2))};
    jobs.back().steps = 1;
  }
  return jobs;
}

TEST(Company, EightRandomJobsHaveTheBitsOfTheJobsAlone) {
  if (kernel_isa(at::kFloat, test_device()) == kernels::Isa::none) GTEST_SKIP() << "ATen promises agreement within rounding";
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    if (kernel_isa(compute, test_device()) == kernels::Isa::none) continue;
    Interpreter interpreter(random_backbone(kernel_friendly_config(), compute));
    for (uint64_t key = 0; key < 6; ++key) {
      const std::vector<RandomJob> jobs = random_jobs(key, 8);
      const Trained together = train(interpreter, jobs, true), alone = train(interpreter, jobs, false);
      for (size_t job = 0; job < jobs.size(); ++job) {
        EXPECT_EQ(together.losses[job], alone.losses[job]) << "mix " << key << ", " << jobs[job].name;
        EXPECT_EQ(difference_in_bits(together.values[job], alone.values[job]), "")
            << "mix " << key << ", " << jobs[job].name;
      }
    }
  }
}

TEST(Company, EightRandomJobsAgreeWithTheJobsAloneOnThePortablePath) {
  const PortableKernels portable;
  Interpreter interpreter(tiny_backbone("qwen2", at::kFloat));
  for (uint64_t key = 10; key < 13; ++key) {
    const std::vector<RandomJob> jobs = random_jobs(key, 8);
    EXPECT_LE(largest_difference(train(interpreter, jobs, true), train(interpreter, jobs, false)), allowed(at::kFloat).loss);
  }
}

// mLoRA §2.2 (ML-3): the gradients of one consolidated step are those of the jobs in turn (ML-2).
TEST(Company, EightRandomJobsHaveTheGradientsOfTheJobsAlone) {
  for (const bool portable : {false, true}) {
    std::optional<PortableKernels> scope;
    if (portable) scope.emplace();
    const bool bits = !portable && kernel_isa(at::kFloat, test_device()) != kernels::Isa::none;
    Interpreter interpreter(random_backbone(kernel_friendly_config(), at::kFloat));
    for (uint64_t key = 20; key < 23; ++key) {
      const std::vector<RandomJob> jobs = random_jobs(key, 8);
      const JobAdapters adapters(jobs, interpreter.stage().backbone());
      for (size_t i = 0; i < jobs.size(); ++i) {
        select_alone(interpreter, jobs[i], *adapters.pointers[i]);
        randomise(*adapters.pointers[i], jobs[i].seed, 0.05);
      }
      const GradientRun together = gradients_of(interpreter, adapters.jobs, adapters.pointers, {});
      for (size_t i = 0; i < jobs.size(); ++i) {
        const GradientRun alone = gradients_of(interpreter, {adapters.jobs[i]}, {adapters.pointers[i]}, {});
        const std::string which = fmt::format("mix {}, {}{}", key, jobs[i].name, portable ? ", portable" : "");
        EXPECT_NEAR(together.losses[i], alone.losses[0], 1e-5 * alone.losses[0]) << which;
        EXPECT_LE(largest_relative_difference(together.gradients[i], alone.gradients[0]), 1e-5) << which;
        if (bits) {
          EXPECT_EQ(difference_in_bits(together.gradients[i], alone.gradients[0]), "") << which;
        }
      }
    }
  }
}

/// Everything that is frozen, as the engine holds it: the products of unit vectors in both directions, and the vectors.
std::vector<at::Tensor> frozen_values(const Backbone& backbone) {
  const auto options = at::TensorOptions().dtype(backbone.compute()).device(backbone.device());
  const at::Tensor tokens = at::arange(backbone.config().vocabulary_size, options.dtype(at::kLong));
  std::vector<at::Tensor> values{backbone.embed(tokens), backbone.final_norm().clone()};
  const auto add = [&](const FrozenProduct& product, bool both) {
    values.push_back(product.forward(at::eye(product.in_features(), options), {}));
    if (both) values.push_back(product.backward(at::eye(product.out_features(), options), {}));
  };
  for (int64_t index = 0; index < backbone.config().layer_count; ++index) {
    const BackboneLayer& layer = backbone.layer(index);
    values.push_back(layer.attention_norm.clone());
    values.push_back(layer.mlp_norm.clone());
    for (const auto& product : {layer.qkv, layer.o, layer.gate_up, layer.down}) add(*product, true);
  }
  add(backbone.head(), true);
  return values;
}

TEST(Company, TrainingLeavesTheFrozenWeightsAsTheyWere) {
  for (const at::ScalarType compute : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const auto backbone = random_backbone(kernel_friendly_config(), compute);
    Interpreter interpreter(backbone);
    const std::vector<at::Tensor> before = frozen_values(*backbone);
    train(interpreter, four_jobs(3), true);
    EXPECT_EQ(difference_in_bits(frozen_values(*backbone), before), "") << compute;
  }
}

TEST(Company, NoGradientOfAFrozenWeightIsEverHeld) {
  SKIP_ON_A_DEVICE() << "counts the host's memory";
  install_counting_allocator();
  ModelConfig config = kernel_friendly_config();
  config.hidden_size = 512;  // packed forms of factors grow with it, gradients of weights with its square
  config.head_count = 16;
  config.intermediate_size = 1024;
  const auto backbone = random_backbone(config, at::kFloat);
  Interpreter interpreter(backbone);
  const int64_t smallest_gradient = config.hidden_size * config.query_size() * 4;  // of o_proj
  const MemoryFacts facts = memory_facts(at::kFloat, at::kCPU);
  const int64_t scratch = facts.attention_threads * attention_scratch_bytes(config, 2, Direction::backward, facts);
  for (const RandomJob& job :
       {lora_job("lora", 1, 1, 0.3, {"all-linear"}, {2}), bottleneck_job("bottleneck", 2, 1, Activation::relu, {2})}) {
    const auto adapter = job.make_adapter(config, at::kFloat);
    gradients_of(interpreter, {&job}, {adapter.get()}, {});
    reset_memory_peaks();
    const int64_t before = memory_usage().live_bytes();
    gradients_of(interpreter, {&job}, {adapter.get()}, {});
    const MemoryUsage usage = memory_usage();
    int64_t peaks = 0;
    for (const int64_t bytes : usage.peak_bytes) peaks += bytes;
    // Gradients of the adapter are copied for the result, and threads of attention work in what grows with heads and rows.
    EXPECT_LT(peaks - before - 4 * adapter->parameter_count() - scratch, smallest_gradient * 3 / 4) << job.name;
  }
}

}  // namespace
}  // namespace cotune::testing
