// A job is never touched by its neighbours: equal bits alone and in company, under every policy, token budget,
// recompute rule, arrival and departure.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/random_job.h"
#include "engine/reference_job.h"
#include "ops/backend.h"

namespace cotune::testing {
namespace {

struct Setting {
  std::string name;
  std::string model;       ///< a tiny model's folder, or "random"
  at::ScalarType compute;
  int64_t longest_row;     ///< above 256 where attention runs in our kernels: rows then become chains
};

std::ostream& operator<<(std::ostream& out, const Setting& setting) { return out << setting.name; }

std::vector<RandomJob> four_jobs(int64_t longest) {
  const auto cap = [longest](std::vector<int64_t> lengths) {
    for (int64_t& length : lengths) length = std::min(length, longest);
    return lengths;
  };
  const std::vector<std::string> everything{"all-linear"};
  return {lora_job("dropout", 11, 5, 0.25, everything, cap({longest, 31, 2})),
          bottleneck_job("bottleneck", 12, 9, Activation::gelu, cap({40, 300, 1, 77})),
          diff_pruning_job("diff", 13, 0.03, cap({20, 129, 65})),
          // In chunks 300 and both 90 are one packed row; 240 lies in another, for behind 300 it would be cut beside the grid (row_cut_tokens).
          lora_job("plain", 14, 16, 0.0, {"q_proj", "v_proj", "down_proj"}, cap({513, 12, 90, 90, 300, 240}))};
}

class Isolation : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (kernel_isa(GetParam().compute, test_device()) == kernels::Isa::none) {
      GTEST_SKIP() << "equal bits are what our kernels promise, and this device lacks them";
    }
    backbone_ = GetParam().model == "random" ? random_backbone(kernel_friendly_config(), GetParam().compute)
                                             : tiny_backbone(GetParam().model, GetParam().compute);
    jobs_ = four_jobs(GetParam().longest_row);
    interpreter_ = std::make_unique<Interpreter>(backbone_);
  }

  /// What company is compared with: each job by itself.
  void train_alone(const PackingPolicy& policy) {
    alone_.clear();
    alone_losses_.clear();
    for (const RandomJob& job : jobs_) {
      JobLife life(0, job, *backbone_);
      run_lives(*interpreter_, {&life}, policy);
      ASSERT_EQ(life.failure(), "");
      alone_.push_back(values_of(life.adapter()));
      alone_losses_.push_back(life.losses());
    }
  }

  /// All jobs together (besides `guests`, which come first in their microbatches or not, as the plan decides).
  void expect_equal_bits(const PackingPolicy& policy, const std::vector<int64_t>& arrivals,
                         const std::vector<RandomJob>& guests = {}) {
    std::vector<std::unique_ptr<JobLife>> lives;
    std::vector<JobLife*> pointers;
    for (const RandomJob& job : jobs_) {
      lives.push_back(std::make_unique<JobLife>(static_cast<int32_t>(lives.size()), job, *backbone_));
    }
    for (const RandomJob& job : guests) {
      lives.push_back(std::make_unique<JobLife>(static_cast<int32_t>(lives.size()), job, *backbone_));
    }
    for (const auto& life : lives) pointers.push_back(life.get());
    run_lives(*interpreter_, pointers, policy, arrivals);
    for (size_t i = 0; i < jobs_.size(); ++i) {
      EXPECT_EQ(lives[i]->failure(), "");
      EXPECT_EQ(difference_in_bits(values_of(lives[i]->adapter()), alone_[i]), "")
          << jobs_[i].name << ", layout " << static_cast<int>(policy.layout) << ", sharing "
          << static_cast<int>(policy.sharing) << ", budget " << policy.token_budget << (policy.recompute ? ", recomputed" : "");
      EXPECT_EQ(lives[i]->losses(), alone_losses_[i]) << jobs_[i].name;
    }
    for (size_t i = jobs_.size(); i < lives.size(); ++i) EXPECT_NE(lives[i]->failure(), "") << guests[i - jobs_.size()].name;
  }

  std::shared_ptr<const Backbone> backbone_;
  std::unique_ptr<Interpreter> interpreter_;
  std::vector<RandomJob> jobs_;
  std::vector<std::vector<at::Tensor>> alone_;
  std::vector<std::vector<double>> alone_losses_;
};

TEST_P(Isolation, AJobHasEqualBitsAloneAndInCompanyUnderEveryPolicy) {
  train_alone({.token_budget = 1024});
  for (const Sharing sharing : {Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid}) {
    for (const int64_t budget : {256, 512, 1024}) {
      // Recomputation under every policy and under every budget, not under every pair.
      const bool recompute = (budget == 512) != (sharing == Sharing::hybrid);
      expect_equal_bits({.sharing = sharing, .token_budget = budget, .recompute = recompute}, {});
    }
  }
  expect_equal_bits({.token_budget = 512, .hybrid_tasks = {{3, 0}, {1, 2}}}, {});
  expect_equal_bits({.recompute = true, .hybrid_tasks = {{1, 3}, {2}}}, {});  // job 0 is in none
}

// Chunks and pads group a job's gradients in another way than ragged rows do, so each layout has bits of its own.
TEST_P(Isolation, AJobHasEqualBitsAloneAndInCompanyInEveryLayout) {
  const bool own_attention = GetParam().longest_row > 256;
  for (const Layout layout : {Layout::chunked, Layout::padded}) {
    // ATen sums over a row's pads too, and so groups its sums by how many the neighbours demand.
    if (layout == Layout::padded && !own_attention) continue;
    train_alone({.layout = layout, .token_budget = 1024});
    expect_equal_bits({.sharing = Sharing::separate, .layout = layout, .token_budget = 256, .recompute = true}, {});
    expect_equal_bits({.sharing = Sharing::temporal, .layout = layout, .token_budget = 512}, {});
    expect_equal_bits({.sharing = Sharing::batch_all, .layout = layout}, {});
    expect_equal_bits({.sharing = Sharing::hybrid, .layout = layout, .token_budget = 512, .recompute = true}, {});
    expect_equal_bits({.layout = layout, .token_budget = 256, .hybrid_tasks = {{3, 0}, {1, 2}}}, {0, 1, 0, 1});
  }
}

TEST_P(Isolation, ArrivalsAndDeparturesChangeNoBit) {
  jobs_[2].steps = 1;  // leaves early
  train_alone({});
  expect_equal_bits({.token_budget = 512}, {0, 2, 1, 3});
  expect_equal_bits({.token_budget = 256, .recompute = true}, {4, 0, 0, 1});
  expect_equal_bits({.token_budget = 512, .hybrid_tasks = {{0, 2}, {1, 3}}}, {2, 0, 1, 0});
}

TEST_P(Isolation, ANeighbourThatDivergesFailsAlone) {
  train_alone({});
  const std::vector<std::string> everything{"all-linear"};
  std::vector<RandomJob> guests = {lora_job("diverging lora", 21, 7, 0.1, everything, {64, 100}),
                                   bottleneck_job("diverging bottleneck", 22, 8, Activation::gelu, {50, 3}),
                                   diff_pruning_job("diverging diff", 23, 0.05, {33})};
  for (RandomJob& guest : guests) {
    guest.optimizer.learning_rate = 1e30;
    guest.steps = 1000;
  }
  guests[1].optimizer.learning_rate = 3e38;  // the norms after a bottleneck make a number of what is merely large
  expect_equal_bits({.token_budget = 512}, {}, guests);
  expect_equal_bits({.sharing = Sharing::batch_all, .recompute = true}, {}, guests);
}

INSTANTIATE_TEST_SUITE_P(
    Models, Isolation,
    ::testing::Values(Setting{"random_f32", "random", at::kFloat, 700},
                      Setting{"random_bf16", "random", at::kBFloat16, 700},
                      Setting{"llama2_f32", "llama2", at::kFloat, 200},
                      Setting{"llama2_bf16", "llama2", at::kBFloat16, 200},
                      Setting{"llama3_f32", "llama3", at::kFloat, 700},
                      Setting{"llama3_bf16", "llama3", at::kBFloat16, 700},
                      Setting{"mistral_f32", "mistral", at::kFloat, 200},
                      Setting{"mistral_bf16", "mistral", at::kBFloat16, 200},
                      Setting{"smollm2_f32", "smollm2", at::kFloat, 200},
                      Setting{"smollm2_bf16", "smollm2", at::kBFloat16, 200},
                      Setting{"qwen2_f32", "qwen2", at::kFloat, 200},
                      Setting{"qwen2_bf16", "qwen2", at::kBFloat16, 200}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cotune::testing
