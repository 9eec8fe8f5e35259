// The engine against HF PEFT: equal initial adapters, data order and hyperparameters (design: "exact").

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/reference_job.h"

namespace cotune::testing {
namespace {

struct JobSet {
  std::vector<ReferenceJob> jobs;
  std::vector<const ReferenceJob*> pointers;
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<Adapter*> adapter_pointers;

  JobSet(const std::string& family, const ModelConfig& config, at::ScalarType compute) : jobs(reference_jobs(family)) {
    for (const ReferenceJob& job : jobs) {
      pointers.push_back(&job);
      adapters.push_back(job.make_adapter(config, compute));
      adapter_pointers.push_back(adapters.back().get());
    }
  }
};

class PeftReference : public ::testing::TestWithParam<std::string> {};

TEST_P(PeftReference, FiftyStepsInCompanyEqualPeftAloneInF64) {
  const auto backbone = tiny_backbone(GetParam(), at::kDouble);
  Interpreter interpreter(backbone);
  JobSet set(GetParam(), backbone->config(), at::kDouble);
  for (int64_t step = 0; step < 50; ++step) {
    const TrainedRound trained = train_round(interpreter, set.pointers, set.adapter_pointers, step, {});
    for (size_t i = 0; i < set.jobs.size(); ++i) {
      const ReferenceJob::Step& expected = set.jobs[i].steps[static_cast<size_t>(step)];
      EXPECT_TRUE(trained.rounds[i].stepped) << trained.rounds[i].failure;
      ASSERT_NEAR(trained.rounds[i].loss(), expected.loss, 1e-10 * expected.loss) << set.jobs[i].name << " step " << step;
      ASSERT_NEAR(trained.rounds[i].gradient_norm, expected.gradient_norm, 1e-8 * expected.gradient_norm)
          << set.jobs[i].name << " step " << step;
    }
  }
  for (size_t i = 0; i < set.jobs.size(); ++i) {
    for (const Parameter& parameter : set.adapters[i]->parameters()) {
      const at::Tensor expected = read_tensor(set.jobs[i].folder / "reference.safetensors", "final." + parameter.name);
      const at::Tensor ours = parameter.transposed_in_file ? parameter.value.t() : parameter.value;
      EXPECT_LE(relative_difference(ours, expected), 1e-9) << set.jobs[i].name << " " << parameter.name;
    }
  }
}

TEST_P(PeftReference, TwentyStepsInF32FollowPeft) {
  const auto backbone = tiny_backbone(GetParam(), at::kFloat);
  Interpreter interpreter(backbone);
  JobSet set(GetParam(), backbone->config(), at::kFloat);
  for (int64_t step = 0; step < 20; ++step) {
    const TrainedRound trained = train_round(interpreter, set.pointers, set.adapter_pointers, step, {});
    for (size_t i = 0; i < set.jobs.size(); ++i) {
      const double expected = set.jobs[i].steps[static_cast<size_t>(step)].loss;
      ASSERT_NEAR(trained.rounds[i].loss(), expected, 1e-5 * expected) << set.jobs[i].name << " step " << step;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PeftReference, ::testing::Values("smollm2", "llama3", "qwen2"));

}  // namespace
}  // namespace cotune::testing
