// How adapters start, and the activations of bottlenecks.

#include "adapter/adapter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "adapter/activation.h"
#include "adapter/diff_pruning.h"
#include "support/on_device.h"

namespace cotune {
namespace {

using testing::on_device, testing::on_host, testing::test_device;

ModelConfig model(int64_t hidden = 64) {
  return {.family = "llama",
          .layer_count = 2,
          .hidden_size = hidden,
          .intermediate_size = 96,
          .head_count = 4,
          .kv_head_count = 2,
          .head_dim = 16,
          .vocabulary_size = 128,
          .context_length = 256};
}

std::unique_ptr<Adapter> adapter_of(AdapterMethod method, uint64_t seed, const ModelConfig& config = model(),
                                    at::ScalarType compute = at::kFloat) {
  JobSpec job;
  job.name = "job";
  job.adapter.method = method;
  job.adapter.bottleneck_size = 8;
  if (method == AdapterMethod::lora) job.adapter.target_modules = {"all-linear"};
  AdapterSetup setup;
  setup.spec = job.adapter;
  setup.modules = resolve_target_modules(job, config.layer_count);
  setup.seed = seed;
  setup.compute = compute;
  setup.device = test_device();
  return make_adapter(config, std::move(setup));
}

TEST(Adapter, StartsUniformInTheFirstFactorAndZeroInTheSecond) {
  for (const AdapterMethod method : {AdapterMethod::lora, AdapterMethod::bottleneck}) {
    const auto adapter = adapter_of(method, 1);
    for (const Parameter& parameter : adapter->parameters()) {
      const bool first = parameter.name.find("lora_A") != std::string::npos ||
                         parameter.name.find("adapter_down.weight") != std::string::npos;
      const double bound = 1 / std::sqrt(static_cast<double>(parameter.value.size(-1)));
      const double largest = parameter.value.abs().max().item<double>();
      EXPECT_EQ(largest > 0, first) << parameter.name;
      if (first) {
        EXPECT_LE(largest, bound);
        EXPECT_GT(largest, 0.95 * bound);
        EXPECT_NEAR(parameter.value.to(at::kDouble).std().item<double>(), bound / std::sqrt(3.0), 0.1 * bound);
      }
    }
  }
}

TEST(Adapter, StartsFromItsSeedAlone) {
  for (const AdapterMethod method : {AdapterMethod::lora, AdapterMethod::bottleneck}) {
    const auto first = adapter_of(method, 1), again = adapter_of(method, 1), wide = adapter_of(method, 1, model(), at::kDouble),
               other = adapter_of(method, 2);
    EXPECT_TRUE(at::equal(first->parameters()[0].value, again->parameters()[0].value));
    EXPECT_TRUE(at::equal(first->parameters()[0].value, wide->parameters()[0].value.to(at::kFloat)));
    EXPECT_FALSE(at::equal(first->parameters()[0].value, other->parameters()[0].value));
    EXPECT_FALSE(at::equal(first->parameters()[0].value, first->parameters()[4].value));
  }
}

TEST(DiffPruning, SelectsInAsManyPassesAsItsDenseGradientsNeed) {
  EXPECT_EQ(adapter_of(AdapterMethod::diff_pruning, 1)->selection_passes(), 1);
  ModelConfig large = model(1024);
  large.intermediate_size = 4096;
  large.layer_count = 4;
  // A layer's dense gradients: q, o 1024·64, k, v 1024·32, gate, up, down 1024·4096, f32: 48.75 MiB of the 64.
  EXPECT_EQ(adapter_of(AdapterMethod::diff_pruning, 1, large)->selection_passes(), 4);
}

TEST(Activation, AndItsSlopeAreTheFormulas) {
  const at::Tensor z = at::linspace(-4, 4, 41, at::kDouble).unsqueeze(0) + 0.01, d = at::linspace(1, 2, 41, at::kDouble).unsqueeze(0);
  const auto value_of = [](Activation activation, const at::Tensor& at_z) {
    return on_host(activate({{activation, on_device(at_z)}}).front());
  };
  const auto expect = [&](Activation activation, const at::Tensor& value) {
    EXPECT_TRUE(at::allclose(value_of(activation, z), value, 1e-12, 1e-14));
    const at::Tensor slope = (value_of(activation, z + 1e-6) - value_of(activation, z - 1e-6)) / 2e-6;
    const ActivationGroup backward{activation, on_device(z), {}, on_device(d)};
    const at::Tensor gradient = on_host(activate_backward({backward}).front());
    EXPECT_TRUE(at::allclose(gradient, d * slope, 1e-7, 1e-8));
    const at::Tensor by_operations = on_host(activate_by_operations({{activation, on_device(z)}}).front());
    EXPECT_TRUE(at::allclose(by_operations, value, 1e-12, 1e-14));
    EXPECT_TRUE(at::allclose(on_host(activate_backward_by_operations({backward}).front()), gradient, 1e-12, 1e-14));
  };
  expect(Activation::relu, at::relu(z));
  expect(Activation::gelu, at::gelu(z));
  expect(Activation::silu, at::silu(z));
  expect(Activation::tanh, at::tanh(z));
}

/// Jobs of different functions and widths in one call, each as if it were alone; biases stay in z.
TEST(Activation, OfManyJobsIsThatOfEachAlone) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::ScalarType wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    std::vector<ActivationGroup> groups, singly;
    const std::vector<Activation> functions{Activation::gelu, Activation::relu, Activation::gelu, Activation::tanh, Activation::silu};
    for (size_t i = 0; i < functions.size(); ++i) {
      const auto rows = static_cast<int64_t>(1 + 700 * (i % 2) + i), columns = static_cast<int64_t>(3 + 5 * i);
      const at::Tensor z = on_device((at::arange(rows * columns, wide).reshape({rows, columns}) / 50).sin().to(dtype));
      const at::Tensor bias = on_device(at::arange(columns - 1, wide) / 7), gradient = (z * 3 + 1).to(dtype);
      groups.push_back({functions[i], z.clone(), bias, gradient});
      singly.push_back({functions[i], z.clone(), bias, gradient});
    }
    const std::vector<at::Tensor> values = activate(groups), slopes = activate_backward(groups);
    const std::vector<at::Tensor> by_operations = activate_backward_by_operations(groups);
    for (size_t i = 0; i < groups.size(); ++i) {
      const at::Tensor before = singly[i].z.clone();
      EXPECT_TRUE(at::equal(activate({singly[i]}).front(), values[i]));
      EXPECT_TRUE(at::equal(singly[i].z, groups[i].z));
      EXPECT_FALSE(at::equal(singly[i].z, before));
      EXPECT_TRUE(at::equal(activate_backward({singly[i]}).front(), slopes[i]));
      EXPECT_TRUE(at::allclose(by_operations[i], slopes[i], 1e-2, 1e-2));
      singly[i].z.copy_(before);
      const at::Tensor of_operations = activate_by_operations({singly[i]}).front();
      EXPECT_TRUE(at::equal(singly[i].z, groups[i].z)) << "the same biased z";
      EXPECT_TRUE(at::allclose(of_operations, values[i], 1e-2, 1e-2));
    }
  }
}

}  // namespace
}  // namespace cotune
