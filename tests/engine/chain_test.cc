// Rows that go through the model in chunks: the same gradients as in one piece (f64).

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <tuple>

#include "engine/random_job.h"
#include "engine/reference_job.h"

namespace cotune::testing {
namespace {

/// A model ("random": the kernels' own sizes), and whether activations are recomputed.
class Chains : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(Chains, GiveTheGradientsOfTheWholeRowForEveryMethod) {
  const auto& [model, recompute] = GetParam();
  const bool is_random = model == "random";
  const auto backbone = is_random ? random_backbone(kernel_friendly_config(), at::kDouble) : tiny_backbone(model, at::kDouble, 512);
  Interpreter interpreter(backbone);
  const int64_t longest = is_random ? 617 : 283;
  const RandomJob lora = lora_job("lora", 1, 4, 0.2, {"all-linear"}, {longest, 9}),
                  bottleneck = bottleneck_job("bottleneck", 2, 6, Activation::tanh, {41, longest - 14}),
                  diff = diff_pruning_job("diff", 3, 0.02, {longest - 6});
  const std::vector<const RandomJob*> jobs{&lora, &bottleneck, &diff};
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<Adapter*> pointers;
  for (const RandomJob* job : jobs) {
    adapters.push_back(job->make_adapter(backbone->config(), at::kDouble));
    select_alone(interpreter, *job, *adapters.back());
    randomise(*adapters.back(), job->seed, 0.1);
    pointers.push_back(adapters.back().get());
  }
  const GradientRun whole = gradients_of(interpreter, jobs, pointers, {.token_budget = 4096}, 4096);
  for (const int64_t tokens : {16, 64, 257}) {
    for (const int64_t budget : is_random ? std::vector<int64_t>{tokens, 2 * tokens + 1} : std::vector<int64_t>{2 * tokens + 1}) {
      const PackingPolicy policy{.token_budget = budget, .recompute = recompute};
      const GradientRun chained = gradients_of(interpreter, jobs, pointers, policy, tokens);
      for (size_t i = 0; i < jobs.size(); ++i) {
        EXPECT_NEAR(chained.losses[i], whole.losses[i], 1e-10 * whole.losses[i]);
        EXPECT_LE(largest_relative_difference(chained.gradients[i], whole.gradients[i]), 1e-10)
            << jobs[i]->name << ", chunks of " << tokens << ", budget " << budget;
      }
    }
  }
}

const auto chain_name = [](const auto& info) {
  return std::get<std::string>(info.param) + (std::get<bool>(info.param) ? "Recomputed" : "Kept");
};
INSTANTIATE_TEST_SUITE_P(Kernels, Chains, ::testing::Combine(::testing::Values("random"), ::testing::Bool()), chain_name);
INSTANTIATE_TEST_SUITE_P(Families, Chains, ::testing::Combine(::testing::ValuesIn(tiny_families), ::testing::Bool()), chain_name);

TEST(Chains, OfSingleTokensGiveTheGradientsOfTheWholeRowForEveryMethod) {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);  // single tokens: threads only wait for each other
  for (const std::string& family : tiny_families) {
    const auto backbone = tiny_backbone(family, at::kDouble, 512);
    Interpreter interpreter(backbone);
    // One row is longer than an atom, so that a chain adds to more than one; in one family, for it takes long.
    const int64_t longest = family == "llama3" ? 263 : 17;
    for (const RandomJob& job : {lora_job("lora", 1, 4, 0.2, {"all-linear"}, {longest}),
                                 bottleneck_job("bottleneck", 2, 5, Activation::gelu, {17}),
                                 diff_pruning_job("diff", 3, 0.02, {17})}) {
      const auto adapter = job.make_adapter(backbone->config(), at::kDouble);
      select_alone(interpreter, job, *adapter);
      randomise(*adapter, job.seed, 0.1);
      const GradientRun whole = gradients_of(interpreter, {&job}, {adapter.get()}, {.token_budget = 1024}, 1024);
      for (const bool recompute : {false, true}) {
        const GradientRun chained =
            gradients_of(interpreter, {&job}, {adapter.get()}, {.token_budget = 1, .recompute = recompute}, 1);
        EXPECT_NEAR(chained.losses[0], whole.losses[0], 1e-10 * whole.losses[0]) << family << ", " << job.name;
        EXPECT_LE(largest_relative_difference(chained.gradients[0], whole.gradients[0]), 1e-10) << family << ", " << job.name;
      }
    }
  }
  at::set_num_threads(threads);
}

TEST(Chains, OfRowsThatNeighboursRideAlongWithKeepTheNeighboursGradients) {
  const auto backbone = tiny_backbone("llama3", at::kDouble);
  Interpreter interpreter(backbone);
  const RandomJob long_row = lora_job("long", 1, 3, 0.0, {"all-linear"}, {640}),
                  short_rows = lora_job("short", 2, 2, 0.1, {"all-linear"}, {30, 5, 60, 17});
  const auto first = long_row.make_adapter(backbone->config(), at::kDouble),
             second = short_rows.make_adapter(backbone->config(), at::kDouble);
  randomise(*first, 1, 0.1);
  randomise(*second, 2, 0.1);
  const GradientRun together =
      gradients_of(interpreter, {&long_row, &short_rows}, {first.get(), second.get()}, {.token_budget = 300}, 128);
  const GradientRun alone = gradients_of(interpreter, {&short_rows}, {second.get()}, {.token_budget = 4096}, 4096);
  EXPECT_LE(largest_relative_difference(together.gradients[1], alone.gradients[0]), 1e-10);
}

TEST(Chains, LeaveNoKeysAndValuesBehindInEvaluation) {
  const auto backbone = random_backbone(kernel_friendly_config(), at::kDouble);
  Interpreter interpreter(backbone);
  const RandomJob job = lora_job("job", 1, 4, 0.3, {"all-linear"}, {617, 9});
  const auto adapter = job.make_adapter(backbone->config(), at::kDouble);
  randomise(*adapter, 3, 0.1);
  const Batch batch = job.batch(0, backbone->config().vocabulary_size);
  JobRound round;
  round.adapter = adapter.get();
  round.batch = &batch;
  round.purpose = RoundPurpose::evaluate;
  const double whole = run_round(interpreter, {round}, {.token_budget = 4096}, 4096).front().loss();
  for (const int64_t tokens : {20, 64}) {
    EXPECT_NEAR(run_round(interpreter, {round}, {.token_budget = tokens}, tokens).front().loss(), whole, 1e-10 * whole);
  }
}

}  // namespace
}  // namespace cotune::testing
