// Whole rounds on torch's `meta` device, whose tensors have shapes and no data: what reads a value on the host, or hands
// a device's memory to a CPU kernel, throws there as it would fail or stall on a GPU.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include "engine/random_job.h"

namespace cotune::testing {
namespace {

/// torch has the shape rules of a few operations in Python only.
at::Tensor index_select(const at::Tensor& self, int64_t dimension, const at::Tensor& index) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes[static_cast<size_t>(dimension)] = index.numel();
  return at::empty(sizes, self.options());
}

at::Tensor repeat_interleave(const at::Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(output_size.has_value(), "repeat_interleave without output_size reads its sum on the host");
  return at::empty({*output_size}, repeats.options());
}

at::Tensor& abs_out(const at::Tensor& self, at::Tensor& out) {
  out.resize_(self.sizes());
  return out;
}

TORCH_LIBRARY_IMPL(aten, Meta, library) {
  library.impl("abs.out", abs_out);
  library.impl("index_select", index_select);
  library.impl("repeat_interleave.Tensor", repeat_interleave);
}

/// Interprets rounds on the meta device; the one transfer of a round brings ones in place of data.
class MetaRounds {
 public:
  explicit MetaRounds(at::ScalarType compute)
      : backbone_(random_backbone(kernel_friendly_config(), compute, at::kMeta)), interpreter_(backbone_) {
    interpreter_.read_tensor = [this](const at::Tensor& tensor) {
      EXPECT_TRUE(tensor.is_meta());
      ++reads_;
      return at::ones(tensor.sizes(), tensor.options().device(at::kCPU));
    };
    interpreter_.stage().on_operator = [this](const Operator&, const MicrobatchState&, double) { ++operators_; };
  }

  const Backbone& backbone() const { return *backbone_; }
  Interpreter& interpreter() { return interpreter_; }
  /// Since the last call.
  int64_t reads() { return std::exchange(reads_, 0); }
  int64_t operators() { return std::exchange(operators_, 0); }

 private:
  std::shared_ptr<const Backbone> backbone_;
  Interpreter interpreter_;
  int64_t reads_ = 0, operators_ = 0;
};

/// Every method, activation, optimizer and option that takes a way of its own through the operators.
std::vector<RandomJob> jobs_of_every_kind() {
  std::vector<RandomJob> jobs{lora_job("lora", 1, 4, 0.2, {"all-linear"}, {617, 9}),
                              lora_job("clipped", 2, 3, 0.0, {"q_proj", "down_proj"}, {70, 33}),
                              lora_job("sgd", 3, 2, 0.1, {"o_proj"}, {40})};
  jobs[1].adapter.lora_plus_ratio = 8;
  jobs[1].optimizer.max_grad_norm = 0.5;
  jobs[1].optimizer.weight_decay = 0.1;
  jobs[2].optimizer = {.kind = OptimizerKind::sgd, .learning_rate = 1e-2, .momentum = 0.9, .max_grad_norm = 1};
  for (const Activation activation : {Activation::relu, Activation::gelu, Activation::silu, Activation::tanh}) {
    jobs.push_back(bottleneck_job("bottleneck", 4, 6, activation, {50, 20}));
  }
  jobs.push_back(diff_pruning_job("diff", 5, 0.02, {100, 30}));
  return jobs;
}

class MetaDevice : public ::testing::TestWithParam<at::ScalarType> {};

TEST_P(MetaDevice, RunsRoundsOfEveryMethodWithOneReadEach) {
  for (const bool recompute : {false, true}) {
    MetaRounds rounds(GetParam());
    std::vector<std::unique_ptr<JobLife>> lives;
    for (const RandomJob& job : jobs_of_every_kind()) {
      lives.push_back(std::make_unique<JobLife>(static_cast<int32_t>(lives.size()), job, rounds.backbone()));
    }
    int64_t steps = 0;
    while (true) {
      std::vector<JobRound> open;
      for (const auto& life : lives) {
        if (!life->done()) open.push_back(life->next_round());
      }
      if (open.empty()) break;
      // Budget below the longest row: it becomes a chain.
      const std::vector<JobRound> results =
          run_round(rounds.interpreter(), open, {.token_budget = 256, .recompute = recompute});
      EXPECT_EQ(rounds.reads(), 1);
      EXPECT_GT(rounds.operators(), 0);
      for (const JobRound& result : results) {
        EXPECT_EQ(result.failure, "");
        EXPECT_EQ(result.stepped, result.purpose == RoundPurpose::train);
        EXPECT_DOUBLE_EQ(result.loss(), 1);  // every label's loss was read as 1
        steps += result.stepped;
        lives[static_cast<size_t>(result.job)]->finish_round(result);
      }
    }
    EXPECT_EQ(steps, static_cast<int64_t>(2 * lives.size()));
  }
}

TEST_P(MetaDevice, EvaluatesWithOneRead) {
  MetaRounds rounds(GetParam());
  for (const RandomJob& job : jobs_of_every_kind()) {
    const auto adapter = job.make_adapter(rounds.backbone().config(), GetParam(), at::kMeta);
    const Batch batch = job.batch(0, rounds.backbone().config().vocabulary_size);
    JobRound round;
    round.adapter = adapter.get();
    round.batch = &batch;
    round.purpose = RoundPurpose::evaluate;
    const JobRound result = run_round(rounds.interpreter(), {round}, {.token_budget = 256}).front();
    EXPECT_EQ(rounds.reads(), 1) << job.name;
    EXPECT_DOUBLE_EQ(result.loss(), 1);
    EXPECT_EQ(result.row_predicted, std::vector<uint8_t>(batch.rows.size(), 0));  // every first choice was read as wrong
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, MetaDevice, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(MetaTensors, RefuseToBeReadOnTheHost) {  // without this the tests above would prove nothing
  const at::Tensor tensor = at::ones({3}, at::TensorOptions().device(at::kMeta));
  EXPECT_THROW(tensor.to(at::kCPU), c10::Error);
  EXPECT_THROW(tensor.sum().item<double>(), c10::Error);
  EXPECT_THROW(tensor.nonzero(), c10::Error);
}

}  // namespace
}  // namespace cotune::testing
