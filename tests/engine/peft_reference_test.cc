// The engine against HF PEFT: equal initial adapters, data order and hyperparameters (design: "exact").

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "engine/random_job.h"
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

/// As the file holds a parameter's value, or its gradient.
at::Tensor in_file(const Parameter& parameter, const at::Tensor& tensor) {
  return parameter.transposed_in_file ? tensor.t() : tensor;
}

/// ‖a − b‖ / ‖b‖; 0 where both are zero.
double distance(const at::Tensor& a, const at::Tensor& b) {
  const double apart = (a.to(at::kCPU, at::kDouble) - b).norm().item<double>();
  return apart == 0 ? 0 : apart / b.norm().item<double>();
}

/// What a job adds to each adapted weight, by module: B·A, which PEFT's scale multiplies alike on both sides.
std::map<std::string, at::Tensor> weight_changes(const Adapter& adapter,
                                                 const std::function<at::Tensor(const Parameter&)>& tensor_of) {
  std::map<std::string, std::pair<at::Tensor, at::Tensor>> factors;
  for (const Parameter& parameter : adapter.parameters()) {
    const bool is_a = parameter.name.ends_with(".lora_A.weight");
    EXPECT_TRUE(is_a || parameter.name.ends_with(".lora_B.weight")) << parameter.name;
    auto& [a, b] = factors[parameter.name.substr(0, parameter.name.size() - std::string(".lora_A.weight").size())];
    (is_a ? a : b) = tensor_of(parameter).to(at::kCPU, at::kDouble);
  }
  std::map<std::string, at::Tensor> changes;
  for (const auto& [module, pair] : factors) changes[module] = at::mm(pair.second, pair.first);
  return changes;
}

class PeftReference : public ::testing::TestWithParam<std::string> {};

// The references are f64, so f64 is held to what f64 can show: 1e-10 for every tensor, before any step and clipping.
TEST_P(PeftReference, EveryFirstGradientInCompanyIsPeftsAloneInF64) {
  const auto backbone = tiny_backbone(GetParam(), at::kDouble);
  Interpreter interpreter(backbone);
  JobSet set(GetParam(), backbone->config(), at::kDouble);
  std::vector<Batch> batches;
  for (const ReferenceJob& job : set.jobs) batches.push_back(job.batch_of(0));
  std::vector<JobRound> rounds(set.jobs.size());
  for (size_t i = 0; i < rounds.size(); ++i) {
    rounds[i].job = static_cast<int32_t>(i);
    rounds[i].adapter = set.adapter_pointers[i];
    rounds[i].batch = &batches[i];
    rounds[i].purpose = RoundPurpose::select;  // forward and backward, and no step
  }
  run_round(interpreter, rounds, {});
  for (size_t i = 0; i < set.jobs.size(); ++i) {
    double squares = 0;
    for (const Parameter& parameter : set.adapters[i]->parameters()) {
      const at::Tensor expected =
          read_tensor(set.jobs[i].folder / "reference.safetensors", "first_gradient." + parameter.name);
      EXPECT_LE(distance(in_file(parameter, parameter.gradient), expected), 1e-10)
          << set.jobs[i].name << " " << parameter.name;
      squares += expected.square().sum().item<double>();
    }
    EXPECT_GT(squares, 0) << set.jobs[i].name;
  }
}

/// What a reference learns of the rows of its first batch until it takes them for the last time.
double last_over_first(const ReferenceJob& job) {
  const auto is_first_batch = [&](const ReferenceJob::Step& step) { return step.batch == job.steps.front().batch; };
  return std::find_if(job.steps.rbegin(), job.steps.rend(), is_first_batch)->loss / job.steps.front().loss;
}

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
      ASSERT_NEAR(trained.rounds[i].gradient_norm, expected.gradient_norm, 1e-10 * expected.gradient_norm)
          << set.jobs[i].name << " step " << step;
    }
  }
  for (size_t i = 0; i < set.jobs.size(); ++i) {
    EXPECT_LE(last_over_first(set.jobs[i]), 0.8) << set.jobs[i].name << ": what hardly moves is easy to equal";
    for (const Parameter& parameter : set.adapters[i]->parameters()) {
      const at::Tensor expected = read_tensor(set.jobs[i].folder / "reference.safetensors", "final." + parameter.name);
      EXPECT_LE(relative_difference(in_file(parameter, parameter.value), expected), 1e-10)
          << set.jobs[i].name << " " << parameter.name;
    }
  }
}

TEST_P(PeftReference, FiftyStepsInF32FollowPeft) {
  const auto backbone = tiny_backbone(GetParam(), at::kFloat);
  Interpreter interpreter(backbone);
  JobSet set(GetParam(), backbone->config(), at::kFloat);
  for (int64_t step = 0; step < 50; ++step) {
    const TrainedRound trained = train_round(interpreter, set.pointers, set.adapter_pointers, step, {});
    for (size_t i = 0; i < set.jobs.size(); ++i) {
      const double expected = set.jobs[i].steps[static_cast<size_t>(step)].loss;
      if (step < 20) {
        ASSERT_NEAR(trained.rounds[i].loss(), expected, (test_device().is_cpu() ? 1e-5 : 3e-5) * expected) << set.jobs[i].name << " step " << step;
      }
    }
  }
  double worst = 0;
  for (size_t i = 0; i < set.jobs.size(); ++i) {
    const Adapter& adapter = *set.adapters[i];
    const auto made = weight_changes(adapter, [](const Parameter& p) { return in_file(p, p.value); });
    const auto wanted = weight_changes(
        adapter, [&](const Parameter& p) { return read_tensor(set.jobs[i].folder / "reference.safetensors", "final." + p.name); });
    for (const auto& [module, change] : wanted) {
      EXPECT_GT(change.norm().item<double>(), 0) << set.jobs[i].name << " " << module;
      worst = std::max(worst, distance(made.at(module), change));
      EXPECT_LE(distance(made.at(module), change), 1e-3) << set.jobs[i].name << " " << module;
    }
  }
  RecordProperty("worst_weight_change", fmt::format("{:.2e}", worst));
}

INSTANTIATE_TEST_SUITE_P(Families, PeftReference, ::testing::ValuesIn(tiny_families));

}  // namespace
}  // namespace cotune::testing
