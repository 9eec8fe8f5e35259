// How adapters start, and the activations of bottlenecks.

#include "adapter/adapter.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "adapter/activation.h"
#include "adapter/diff_pruning.h"

namespace cotune {
namespace {

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
  const at::Tensor z = at::linspace(-4, 4, 41, at::kDouble) + 0.01, d = at::linspace(1, 2, 41, at::kDouble);
  const auto expect = [&](Activation activation, const at::Tensor& value) {
    EXPECT_TRUE(at::allclose(activate(activation, z), value, 1e-12, 1e-14));
    const at::Tensor slope = (activate(activation, z + 1e-6) - activate(activation, z - 1e-6)) / 2e-6;
    EXPECT_TRUE(at::allclose(activate_backward(activation, d, z), d * slope, 1e-7, 1e-8));
    EXPECT_TRUE(at::allclose(activate_by_operations(activation, z), value, 1e-12, 1e-14));
    EXPECT_TRUE(at::allclose(activate_backward_by_operations(activation, d, z), activate_backward(activation, d, z), 1e-12,
                             1e-14));
  };
  expect(Activation::relu, at::relu(z));
  expect(Activation::gelu, at::gelu(z));
  expect(Activation::silu, at::silu(z));
  expect(Activation::tanh, at::tanh(z));
}

}  // namespace
}  // namespace cotune
