// The engine against a plain autograd model (plain_model.h), f64: every family, every method with its options, mixed in
// one microbatch; losses and gradients within 1e-10 over 50 steps in which every loss falls by 20% (design: "exact").

#include "engine/plain_model.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>

#include "engine/optimizer.h"
#include "engine/random_job.h"
#include "engine/reference_job.h"

namespace cotune::testing {
namespace {

/// A job in company and its plain twin.
struct Twin {
  RandomJob job;
  Batch batch;
  std::unique_ptr<Adapter> adapter;
  std::unique_ptr<PlainAdapter> plain;
  std::vector<double> losses;
};

/// Learned tokens as data has them at its edges: a row with none, a row with its last token only.
void mark_edges(Batch& batch) {
  const size_t count = batch.rows.size();
  if (count > 2) batch.rows[count - 1].learned.assign(batch.rows[count - 1].tokens.size(), 0);
  if (count > 1) {
    batch.rows[count - 2].learned.assign(batch.rows[count - 2].tokens.size(), 0);
    batch.rows[count - 2].learned.back() = 1;
  }
}

struct Setting {
  std::string family;
  Activation activation;
};

std::ostream& operator<<(std::ostream& out, const Setting& setting) {
  return out << setting.family;
}

class PlainModelTest : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    at::set_num_threads(1);  // tiny tensors: threads only wait for each other
    if (!test_device().is_cpu()) GTEST_SKIP() << "the plain model computes on the CPU";
    backbone_ = tiny_backbone(GetParam().family, at::kDouble);
    plain_ = std::make_unique<PlainModel>(open_model(tiny_model_folder(GetParam().family)));
    interpreter_ = std::make_unique<Interpreter>(backbone_);
  }

  void TearDown() override {
    at::set_num_threads(threads_);
    RecordProperty("worst_loss", fmt::format("{:.2e}", worst_loss_));
    RecordProperty("worst_norm", fmt::format("{:.2e}", worst_norm_));
    RecordProperty("worst_gradient", fmt::format("{:.2e}", worst_gradient_));
  }

  Twin twin_of(const RandomJob& job) {
    Twin twin{job,
              job.batch(0, backbone_->config().vocabulary_size),
              job.make_adapter(backbone_->config(), at::kDouble),
              {},
              {}};
    mark_edges(twin.batch);
    select_alone(*interpreter_, job, *twin.adapter);
    twin.plain = std::make_unique<PlainAdapter>(*twin.adapter);
    return twin;
  }

  /// One optimizer step of all jobs in shared microbatches and of each plain twin; compares losses and gradients.
  void step(std::vector<Twin>& twins, int64_t step, const PackingPolicy& policy, int64_t segment_tokens = 0) {
    std::vector<JobRound> rounds;
    for (size_t i = 0; i < twins.size(); ++i) {
      JobRound round;
      round.job = static_cast<int32_t>(i);
      round.adapter = twins[i].adapter.get();
      round.batch = &twins[i].batch;
      round.purpose = RoundPurpose::select;  // forward and backward; the step follows once gradients are compared
      round.dropout_key = twins[i].job.dropout_key(step);
      round.optimizer = twins[i].job.optimizer;
      round.optimizer.step = step + 1;
      rounds.push_back(round);
    }
    std::vector<JobRound> results = run_round(*interpreter_, rounds, policy, segment_tokens);
    for (size_t i = 0; i < twins.size(); ++i) {
      Twin& twin = twins[i];
      const double expected = plain_->backward(twin.batch, *twin.plain, twin.job.dropout_key(step));
      twin.losses.push_back(results[i].loss());
      ASSERT_NEAR(results[i].loss(), expected, 1e-10 * expected) << twin.job.name << ", step " << step;
      if (expected > 0) worst_loss_ = std::max(worst_loss_, std::abs(results[i].loss() - expected) / expected);
      std::vector<at::Tensor> gradients, expected_gradients;
      for (const Parameter& parameter : twin.adapter->parameters()) gradients.push_back(parameter.gradient);
      for (const at::Tensor& leaf : twin.plain->leaves()) expected_gradients.push_back(leaf.grad());
      // All of the job's gradients as one vector; then each tensor.
      double square = 0, expected_square = 0;
      for (size_t g = 0; g < gradients.size(); ++g) {
        square += (gradients[g] - expected_gradients[g]).square().sum().item<double>();
        expected_square += expected_gradients[g].square().sum().item<double>();
      }
      ASSERT_LE(std::sqrt(square), 1e-10 * std::sqrt(expected_square)) << twin.job.name << ", step " << step;
      const double apart = largest_relative_difference(gradients, expected_gradients);
      ASSERT_LE(apart, 1e-10) << twin.job.name << ", step " << step;
      if (square > 0) worst_norm_ = std::max(worst_norm_, std::sqrt(square / expected_square));
      worst_gradient_ = std::max(worst_gradient_, apart);
      UnreadResults unread;
      optimizer_step(results[i], {}, step_record(results[i], {}, true, unread), unread);
      unread.read(interpreter_->read_tensor);
      ASSERT_TRUE(results[i].stepped) << results[i].failure;
      twin.plain->step(results[i].optimizer);
    }
  }

  void expect_equal_values(const Twin& twin, double allowed) {
    std::vector<at::Tensor> values, expected;
    for (const Parameter& parameter : twin.adapter->parameters()) values.push_back(parameter.value);
    for (const at::Tensor& leaf : twin.plain->leaves()) expected.push_back(leaf.detach());
    EXPECT_LE(largest_relative_difference(values, expected), allowed) << twin.job.name;
  }

  int threads_ = at::get_num_threads();
  double worst_loss_ = 0, worst_norm_ = 0, worst_gradient_ = 0;
  std::shared_ptr<const Backbone> backbone_;
  std::unique_ptr<PlainModel> plain_;
  std::unique_ptr<Interpreter> interpreter_;
};

std::vector<RandomJob> every_method(Activation activation) {
  RandomJob dropped = lora_job("lora with every option", 1, 3, 0.3, {"all-linear"}, {14, 1, 9, 6});
  dropped.adapter.use_rslora = true;
  dropped.adapter.lora_plus_ratio = 4;
  dropped.adapter.rank_pattern = {{"v_proj", 5}};
  dropped.adapter.alpha_pattern = {{"down_proj", 11}};
  dropped.optimizer.learning_rate = 1e-3;
  dropped.optimizer.weight_decay = 0.02;
  dropped.optimizer.max_grad_norm = 1.5;
  RandomJob upper = lora_job("lora on the upper layer, SGD", 2, 4, 0, {"q_proj", "o_proj", "up_proj"}, {11, 7});
  upper.adapter.layers_to_transform = {1};
  upper.optimizer = {.kind = OptimizerKind::sgd, .learning_rate = 2e-2, .momentum = 0.9};
  RandomJob bottleneck = bottleneck_job("bottleneck", 3, 5, activation, {10, 5, 8});
  bottleneck.optimizer.learning_rate = 4e-3;
  RandomJob diff = diff_pruning_job("diff pruning", 4, 0.03, {12, 4});
  diff.optimizer.learning_rate = 1e-2;
  RandomJob dense = diff_pruning_job("diff pruning of every weight", 5, 1, {9});
  dense.adapter.target_modules = {"k_proj", "gate_proj"};
  dense.optimizer.learning_rate = 3e-3;
  RandomJob sparse = diff_pruning_job("diff pruning of one weight a module", 6, 1e-9, {9, 3});
  sparse.optimizer.learning_rate = 0.1;
  std::vector<RandomJob> jobs{dropped, upper, bottleneck, diff, dense, sparse};
  // AdamW divides gradients that are all but zero by little more than epsilon: a larger one keeps rounding small.
  for (RandomJob& job : jobs) job.optimizer.epsilon = 1e-6;
  return jobs;
}

TEST_P(PlainModelTest, FiftyStepsOfEveryMethodInOneMicrobatchAreAutogradsOfEachJobAlone) {
  std::vector<Twin> twins;
  for (const RandomJob& job : every_method(GetParam().activation)) twins.push_back(twin_of(job));
  for (int64_t step_index = 0; step_index < 50; ++step_index) {
    step(twins, step_index, {.sharing = Sharing::batch_all});
    if (HasFatalFailure()) return;
  }
  for (const Twin& twin : twins) {
    expect_equal_values(twin, 1e-10);
    EXPECT_LE(twin.losses.back(), 0.8 * twin.losses.front())
        << twin.job.name << ": a loss that hardly falls shows little";
  }
}

TEST_P(PlainModelTest, RaggedEdgesAreAutogradsToo) {
  std::vector<RandomJob> jobs;
  uint64_t seed = 100;
  const std::vector<std::string> everything{"all-linear"};
  for (int i = 0; i < 8; ++i) jobs.push_back(lora_job("one token", ++seed, 1 + i % 3, i % 2 * 0.4, everything, {1}));
  for (const int64_t r : {1, 7, 33})
    jobs.push_back(lora_job("rank " + std::to_string(r), ++seed, r, 0.2, everything, {2, 5, 1}));
  for (const int64_t size : {1, 40})
    jobs.push_back(bottleneck_job("bottleneck", ++seed, size, GetParam().activation, {3, 2}));
  jobs.push_back(bottleneck_job("bottleneck of one token", ++seed, 3, GetParam().activation, {1}));
  jobs.push_back(lora_job("nothing to learn", ++seed, 2, 0, everything, {6, 4}));
  jobs.push_back(diff_pruning_job("one weight a module", ++seed, 1e-9, {4, 2}));
  jobs.push_back(diff_pruning_job("every weight", ++seed, 1, {3}));
  std::vector<Twin> twins;
  for (const RandomJob& job : jobs) {
    twins.push_back(twin_of(job));
    Twin& twin = twins.back();
    randomise(*twin.adapter, job.seed, 0.2);
    twin.plain = std::make_unique<PlainAdapter>(*twin.adapter);
    if (job.name != "nothing to learn") continue;
    for (BatchRow& row : twin.batch.rows) row.learned.assign(row.tokens.size(), 0);
  }
  int64_t step_index = 0;
  for (const int64_t segment_tokens :
       {0, 3}) {  // 3: chunks and microbatches without a labelled token, or without a job
    for (const bool recompute : {false, true}) {
      const PackingPolicy policy{.token_budget = segment_tokens == 0 ? 1024 : segment_tokens, .recompute = recompute};
      step(twins, step_index++, policy, segment_tokens);
      if (HasFatalFailure()) return;
    }
  }
  for (const Twin& twin : twins) {
    expect_equal_values(twin, 1e-10);
    const bool learns = twin.batch.labelled_count() > 0;
    EXPECT_EQ(twin.losses.front() > 0, learns) << twin.job.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PlainModelTest,
                         ::testing::Values(Setting{"llama2", Activation::relu}, Setting{"llama3", Activation::gelu},
                                           Setting{"mistral", Activation::silu}, Setting{"qwen2", Activation::tanh},
                                           Setting{"smollm2", Activation::gelu}),
                         [](const auto& info) { return info.param.family; });

}  // namespace
}  // namespace cotune::testing
