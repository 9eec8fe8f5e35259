// The method that docs/adding-an-adapter-method.md adds, built from the page, in the engine (registry.cc): it keeps the rules of the page.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/random.h"
#include "engine/job_adapters.h"
#include "engine/reference_job.h"
#include "ops/backend.h"
#include "ops/call_counts.h"

namespace cotune::testing {
namespace {

const std::vector<std::string> all_targets{"q_proj", "k_proj", "v_proj", "gate_proj", "up_proj"};

std::vector<RandomJob> three_jobs() {
  return {lora_job("wide", 1, 1, 0, all_targets, {12, 5}), lora_job("values", 2, 1, 0, {"v_proj"}, {9, 9}),
          lora_job("long", 3, 1, 0, {"k_proj", "up_proj"}, {300, 4})};
}

struct Company {
  Company(std::shared_ptr<const Backbone> model, bool trained) : interpreter(model), jobs(three_jobs()) {
    for (const RandomJob& job : jobs) {
      adapters.push_back(job.make_adapter(model->config(), model->compute()));
      if (trained) randomise(*adapters.back(), job.seed, 0.3);
      job_pointers.push_back(&job);
      pointers.push_back(adapters.back().get());
    }
  }
  GradientRun alone(size_t job, const PackingPolicy& policy = {}) { return gradients_of(interpreter, {job_pointers[job]}, {pointers[job]}, policy); }

  Interpreter interpreter;
  std::vector<RandomJob> jobs;
  std::vector<const RandomJob*> job_pointers;
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<Adapter*> pointers;
};

TEST(ExampleMethod, LeavesTheModelUnchangedAtTheStart) {
  Company company(tiny_backbone("qwen2", at::kDouble), false);
  for (size_t job = 0; job < company.jobs.size(); ++job) {
    const Batch batch = company.jobs[job].batch(0, company.interpreter.stage().backbone().config().vocabulary_size);
    const auto loss = [&](Adapter* adapter) {
      return run_round(company.interpreter, {{.adapter = adapter, .batch = &batch, .purpose = RoundPurpose::evaluate}}, {}).front().loss();
    };
    EXPECT_EQ(loss(company.pointers[job]), loss(nullptr));
  }
}

TEST(ExampleMethod, HasTheGradientsOfTheLoss) {
  Company company(tiny_backbone("qwen2", at::kDouble), true);
  for (size_t job = 0; job < company.jobs.size(); ++job) {
    const GradientRun run = company.alone(job);
    for (size_t index = 0; index < company.adapters[job]->parameters().size(); ++index) {
      at::Tensor& value = company.adapters[job]->parameters()[index].value;
      const at::Tensor start = value.clone();
      at::Tensor direction = at::empty(value.sizes(), at::kDouble);
      for (int64_t i = 0; i < value.numel(); ++i) direction.mutable_data_ptr<double>()[i] = normal(mix_key(job, index), static_cast<uint64_t>(i));
      constexpr double step = 1e-5;
      const auto loss_at = [&](double distance) {
        value.copy_(start + distance * direction);
        return company.alone(job).losses[0];
      };
      const double found = (loss_at(step) - loss_at(-step)) / (2 * step);
      value.copy_(start);
      const double size = run.gradients[0][index].norm().item<double>();
      EXPECT_GT(size, 0);
      EXPECT_NEAR(found, (run.gradients[0][index] * direction).sum().item<double>(), 1e-6 * size + 1e-10)
          << company.jobs[job].name << " " << company.adapters[job]->parameters()[index].name;
    }
  }
}

TEST(ExampleMethod, HasEqualBitsAloneAndInCompanyOnOurKernels) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    if (kernel_isa(compute, test_device()) == kernels::Isa::none) continue;
    Company company(random_backbone(kernel_friendly_config(), compute), true);
    for (const bool recompute : {false, true}) {
      const GradientRun together = gradients_of(company.interpreter, company.job_pointers, company.pointers, {.token_budget = 256, .recompute = recompute});
      for (size_t job = 0; job < company.jobs.size(); ++job) {
        const GradientRun alone = company.alone(job);
        EXPECT_EQ(together.losses[job], alone.losses[0]);
        EXPECT_EQ(difference_in_bits(together.gradients[job], alone.gradients[0]), "") << company.jobs[job].name;
      }
    }
  }
}

TEST(ExampleMethod, MakesCallsWhoseNumberTheJobsDoNotChange) {
  const auto calls = [](int64_t count) {
    Interpreter interpreter(tiny_backbone("qwen2", at::kDouble));
    std::vector<RandomJob> jobs;
    for (int64_t i = 0; i < count; ++i) jobs.push_back(lora_job("job", static_cast<uint64_t>(i), 1, 0, all_targets, {7, 3 + i}));
    const JobAdapters adapters(jobs, interpreter.stage().backbone());
    const CallCounts before = call_counts();
    gradients_of(interpreter, adapters.jobs, adapters.pointers, {.sharing = Sharing::batch_all});
    return (call_counts() - before).adapter;
  };
  const int64_t one = calls(1);
  EXPECT_GT(one, 0);
  for (int64_t count = 2; count <= 4; ++count) EXPECT_EQ(calls(count), one);
}

}  // namespace
}  // namespace cotune::testing
