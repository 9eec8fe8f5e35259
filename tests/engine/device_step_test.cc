// The optimizer step by tensor operations, as a GPU makes it (f64 takes it on the CPU): equal to that of our kernels,
// called off by what is not finite, and known to the host when the round is read.

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/random.h"
#include "engine/optimizer.h"
#include "engine/random_job.h"
#include "ops/memory.h"

namespace cotune::testing {
namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

std::vector<RandomJob> jobs_of_every_optimizer() {
  std::vector<RandomJob> jobs(4, lora_job("job", 5, 3, 0, {"q_proj", "down_proj"}, {4}));
  jobs[0].optimizer = {.learning_rate = 3e-2, .weight_decay = 0.1, .max_grad_norm = 0.7};
  jobs[0].adapter.lora_plus_ratio = 4;
  jobs[1].optimizer = {.learning_rate = 3e-2, .beta1 = 0.8, .beta2 = 0.9, .epsilon = 1e-6};
  jobs[2].optimizer = {.kind = OptimizerKind::sgd, .learning_rate = 3e-2, .weight_decay = 0.1, .momentum = 0.9};
  jobs[3].optimizer = {.kind = OptimizerKind::sgd, .learning_rate = 3e-2, .max_grad_norm = 1};
  return jobs;
}

void set_gradients(Adapter& adapter, uint64_t key) {
  for (Parameter& parameter : adapter.parameters()) {
    at::Tensor drawn = at::empty(parameter.gradient.sizes(), at::kDouble);
    double* values = drawn.mutable_data_ptr<double>();
    const uint64_t own = mix_key(key, key_of(parameter.name));
    for (int64_t i = 0; i < drawn.numel(); ++i) values[i] = normal(own, static_cast<uint64_t>(i));
    parameter.gradient.copy_(drawn);
  }
}

/// A step whose labels have these losses, read.
JobRound step_of(Adapter& adapter, const OptimizerSettings& settings, std::vector<double> losses) {
  JobRound round;
  round.adapter = &adapter;
  round.optimizer = settings;
  round.labelled_tokens = static_cast<int64_t>(losses.size());
  MicrobatchState state;
  state.jobs = {&round};
  state.losses = at::tensor(losses, at::kDouble).to(adapter.setup().device);
  state.loss_spans = {{0, 0, round.labelled_tokens}};
  UnreadResults unread;
  unread.take_head(state);
  const ReadTensor read = [](const at::Tensor& tensor) { return tensor.to(at::kCPU); };
  if (steps_on_host(adapter)) unread.read(read);
  optimizer_step(round, {}, step_record(round, {}, true, unread), unread);
  unread.read(read);
  return round;
}

std::vector<at::Tensor> state_of(const Adapter& adapter) {
  std::vector<at::Tensor> tensors = values_of(adapter);
  for (const Parameter& parameter : adapter.parameters()) {
    for (const at::Tensor& moment : {parameter.first_moment, parameter.second_moment}) {
      if (moment.defined()) tensors.push_back(moment.clone());
    }
  }
  return tensors;
}

TEST(DeviceStep, IsThatOfTheKernels) {
  for (RandomJob& job : jobs_of_every_optimizer()) {
    const auto by_kernels = job.make_adapter(kernel_friendly_config(), at::kFloat, at::kCPU),
               by_operations = job.make_adapter(kernel_friendly_config(), at::kDouble);
    ASSERT_TRUE(steps_on_host(*by_kernels));
    ASSERT_FALSE(steps_on_host(*by_operations));
    for (int64_t step = 1; step <= 4; ++step) {
      job.optimizer.step = step;
      for (Adapter* adapter : {by_kernels.get(), by_operations.get()}) set_gradients(*adapter, static_cast<uint64_t>(step));
      const JobRound expected = step_of(*by_kernels, job.optimizer, {1, 2}),
                     found = step_of(*by_operations, job.optimizer, {1, 2});
      EXPECT_TRUE(found.stepped) << found.failure;
      EXPECT_DOUBLE_EQ(found.loss(), 1.5);
      EXPECT_NEAR(found.gradient_norm, expected.gradient_norm, 1e-5 * expected.gradient_norm);
    }
    const std::vector<at::Tensor> expected = state_of(*by_kernels), found = state_of(*by_operations);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::allclose(found[i].cpu(), expected[i].to(at::kDouble), 1e-5, 1e-6)) << "tensor " << i;
    }
    for (const Parameter& parameter : by_operations->parameters()) {
      EXPECT_EQ(parameter.gradient.abs().sum().item<double>(), 0);
    }
  }
}

TEST(DeviceStep, LeavesEverythingAsItWasWhereLossOrGradientIsNotFinite) {
  for (RandomJob& job : jobs_of_every_optimizer()) {
    const auto adapter = job.make_adapter(kernel_friendly_config(), at::kDouble);
    job.optimizer.step = 1;
    set_gradients(*adapter, 1);
    ASSERT_TRUE(step_of(*adapter, job.optimizer, {1}).stepped);
    const std::vector<at::Tensor> before = state_of(*adapter);
    job.optimizer.step = 2;
    set_gradients(*adapter, 2);
    const JobRound bad_loss = step_of(*adapter, job.optimizer, {1, not_a_number});
    EXPECT_FALSE(bad_loss.stepped);
    EXPECT_THAT(bad_loss.failure, ::testing::HasSubstr("the loss of step 2 is not finite (nan)"));
    EXPECT_EQ(difference_in_bits(state_of(*adapter), before), "");
    for (const double bad : {not_a_number, std::numeric_limits<double>::infinity()}) {
      set_gradients(*adapter, 2);
      adapter->parameters().back().gradient[0][0] = bad;
      const JobRound round = step_of(*adapter, job.optimizer, {1});
      EXPECT_FALSE(round.stepped);
      EXPECT_THAT(round.failure, ::testing::HasSubstr("the gradient of step 2 is not finite"));
      EXPECT_EQ(difference_in_bits(state_of(*adapter), before), "");
      for (const Parameter& parameter : adapter->parameters()) EXPECT_EQ(parameter.gradient.abs().sum().item<double>(), 0);
    }
  }
}

TEST(DeviceStep, ReportsParametersThatOverflow) {
  RandomJob job = jobs_of_every_optimizer()[3];
  job.optimizer = {.kind = OptimizerKind::sgd, .learning_rate = std::numeric_limits<double>::max()};
  const auto adapter = job.make_adapter(kernel_friendly_config(), at::kDouble);
  set_gradients(*adapter, 1);
  for (Parameter& parameter : adapter->parameters()) parameter.gradient.mul_(100);
  const JobRound round = step_of(*adapter, job.optimizer, {1});
  EXPECT_FALSE(round.stepped);
  EXPECT_THAT(round.failure, ::testing::HasSubstr("the parameters are not finite after step 1"));
}

TEST(DeviceMemory, ThatRunsOutKeepsStepsThatWereMadeAndUndoesTheRest) {
  const auto backbone = random_backbone(kernel_friendly_config(), at::kDouble);
  Interpreter interpreter(backbone);
  const RandomJob job = lora_job("job", 1, 4, 0.1, {"all-linear"}, {30, 20});
  JobLife first(0, job, *backbone), second(1, job, *backbone);
  const std::vector<at::Tensor> before = values_of(second.adapter());
  const std::vector<JobRound> rounds{first.next_round(), second.next_round()};
  std::vector<JobRound> results = rounds;
  const PackingPolicy policy{.sharing = Sharing::separate, .layer_count = backbone->config().layer_count};
  std::vector<BatchShape> shapes;
  for (const JobRound& round : rounds) shapes.push_back(round.batch->shape(round.job, 0));
  interpreter.stage().on_operator = [](const Operator& op, const MicrobatchState& state, double) {
    if (op.kind == OperatorKind::qkv_adapter_gradient && state.jobs.front()->job == 1) {
      throw c10::OutOfMemoryError({__func__, __FILE__, __LINE__}, "the device is full");
    }
  };
  try {
    interpreter.run(plan_step(shapes, policy), results);
    FAIL() << "nothing was thrown";
  } catch (const MemoryLimitExceeded& error) {
    EXPECT_STREQ(error.what(), "the device is full");
  }
  EXPECT_TRUE(results[0].stepped);
  EXPECT_GT(results[0].loss(), 0);
  EXPECT_FALSE(results[1].stepped);
  EXPECT_EQ(results[1].failure, "");
  EXPECT_EQ(difference_in_bits(values_of(second.adapter()), before), "");
  for (const Parameter& parameter : second.adapter().parameters()) {
    EXPECT_EQ(parameter.gradient.abs().sum().item<double>(), 0);
  }
}

}  // namespace
}  // namespace cotune::testing
