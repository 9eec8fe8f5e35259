// Every method in a microbatch of three jobs: against single-job runs and against finite differences (MX-5), f64.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include "base/random.h"
#include "engine/model_logits.h"
#include "engine/random_job.h"
#include "engine/reference_job.h"
#include "ops/backend.h"

namespace cotune::testing {
namespace {

/// Jobs with adapters that have been trained for long.
struct Company {
  std::shared_ptr<const Backbone> backbone;
  Interpreter interpreter;
  std::vector<RandomJob> jobs;
  std::vector<const RandomJob*> job_pointers;
  std::vector<std::unique_ptr<Adapter>> adapters;
  std::vector<Adapter*> adapter_pointers;

  Company(std::shared_ptr<const Backbone> model, std::vector<RandomJob> given)
      : backbone(std::move(model)), interpreter(backbone), jobs(std::move(given)) {
    for (const RandomJob& job : jobs) {
      job_pointers.push_back(&job);
      adapters.push_back(job.make_adapter(backbone->config(), at::kDouble));
      select_alone(interpreter, job, *adapters.back());
      randomise(*adapters.back(), job.seed, 0.3);
      adapter_pointers.push_back(adapters.back().get());
    }
  }
  GradientRun gradients(const PackingPolicy& policy = {}) {
    return gradients_of(interpreter, job_pointers, adapter_pointers, policy);
  }

  /// d loss / d parameter in company along a random direction, by central differences of the job's loss.
  void expect_finite_differences() {
    const GradientRun run = gradients();
    constexpr double step = 1e-5;
    for (size_t job = 0; job < jobs.size(); ++job) {
      for (size_t index = 0; index < adapters[job]->parameters().size(); ++index) {
        at::Tensor& value = adapters[job]->parameters()[index].value;
        const at::Tensor start = value.clone();
        at::Tensor direction = at::empty(value.sizes(), at::kDouble);
        for (int64_t i = 0; i < value.numel(); ++i) {
          direction.mutable_data_ptr<double>()[i] = normal(mix_key(job, index), static_cast<uint64_t>(i));
        }
        direction = direction.to(value.device());
        const auto loss_at = [&](double distance) {
          value.copy_(start + distance * direction);
          adapters[job]->refresh();
          return gradients_of(interpreter, {job_pointers[job]}, {adapter_pointers[job]}, {}).losses[0];
        };
        const double found = (loss_at(step) - loss_at(-step)) / (2 * step);
        value.copy_(start);
        adapters[job]->refresh();
        const double expected = (run.gradients[job][index] * direction).sum().item<double>();
        const double size = (run.gradients[job][index].square().sum().sqrt()).item<double>();
        EXPECT_NEAR(found, expected, 1e-6 * size + 1e-10)
            << jobs[job].name << " " << adapters[job]->parameters()[index].name;
      }
    }
  }

  void expect_gradients_of_single_jobs() {
    const GradientRun together = gradients();
    for (size_t job = 0; job < jobs.size(); ++job) {
      const GradientRun alone = gradients_of(interpreter, {job_pointers[job]}, {adapter_pointers[job]}, {});
      EXPECT_NEAR(together.losses[job], alone.losses[0], 1e-10 * alone.losses[0]);
      EXPECT_LE(largest_relative_difference(together.gradients[job], alone.gradients[0]), 1e-10) << jobs[job].name;
    }
  }
};

std::vector<RandomJob> one_of_each(Activation activation) {
  return {lora_job("lora", 1, 3, 0.3, {"all-linear"}, {12, 5}), bottleneck_job("bottleneck", 2, 4, activation, {9, 9}),
          diff_pruning_job("diff", 3, 0.01, {14})};
}

class EveryActivation : public ::testing::TestWithParam<Activation> {};

TEST_P(EveryActivation, GradientsInAMixedMicrobatchAreThoseOfTheLoss) {
  Company company(tiny_backbone("qwen2", at::kDouble), one_of_each(GetParam()));
  company.expect_gradients_of_single_jobs();
  company.expect_finite_differences();
}

INSTANTIATE_TEST_SUITE_P(Bottlenecks, EveryActivation,
                         ::testing::Values(Activation::relu, Activation::gelu, Activation::silu, Activation::tanh));

TEST(MethodGradients, AreRightWhereverTheLowestAdapterSits) {
  // The lowest adapted operator of the lowest layer makes its gradient without an input gradient.
  for (const std::vector<std::string>& targets :
       std::vector<std::vector<std::string>>{{"v_proj"}, {"o_proj"}, {"up_proj"}, {"down_proj"}, {"k_proj", "gate_proj"}}) {
    std::vector<RandomJob> jobs{lora_job("lora " + targets.front(), 4, 2, 0.0, targets, {7, 3}),
                                lora_job("dropped " + targets.front(), 5, 3, 0.4, targets, {5}),
                                diff_pruning_job("diff " + targets.front(), 6, 0.02, {6})};
    jobs[1].adapter.layers_to_transform = {1};
    jobs[2].adapter.target_modules = targets;
    Company company(tiny_backbone("mistral", at::kDouble), jobs);
    company.expect_gradients_of_single_jobs();
    company.expect_finite_differences();
  }
}

TEST(MethodGradients, OfJobsThatAdaptDifferentLayersDoNotMix) {
  std::vector<RandomJob> jobs{lora_job("upper", 4, 2, 0.2, {"q_proj", "o_proj"}, {7, 3}),
                              bottleneck_job("lower", 5, 3, Activation::silu, {6, 2}),
                              bottleneck_job("upper bottleneck", 6, 5, Activation::gelu, {8})};
  jobs[0].adapter.layers_to_transform = {1};
  jobs[1].adapter.layers_to_transform = {0};
  jobs[2].adapter.layers_to_transform = {1};
  Company company(tiny_backbone("llama2", at::kDouble), jobs);
  company.expect_gradients_of_single_jobs();
  company.expect_finite_differences();
}

class MethodGradients : public ::testing::TestWithParam<std::string> {};

TEST_P(MethodGradients, AreTheSameInEveryLayoutAndPolicy) {
  Company company(tiny_backbone(GetParam(), at::kDouble, 512),
                  {lora_job("lora", 1, 3, 0.3, {"all-linear"}, {300, 5, 80}),
                   bottleneck_job("bottleneck", 2, 4, Activation::gelu, {9, 130, 33}), diff_pruning_job("diff", 3, 0.01, {70, 70})});
  const GradientRun ragged = company.gradients();
  for (const Layout layout : {Layout::padded, Layout::chunked}) {
    for (const Sharing sharing : {Sharing::separate, Sharing::temporal, Sharing::batch_all, Sharing::hybrid}) {
      for (const int64_t budget : GetParam() == "llama3" ? std::vector<int64_t>{400, 2048} : std::vector<int64_t>{400}) {
        const GradientRun run = company.gradients({.sharing = sharing, .layout = layout, .token_budget = budget});
        for (size_t job = 0; job < company.jobs.size(); ++job) {
          EXPECT_NEAR(run.losses[job], ragged.losses[job], 1e-10 * ragged.losses[job]);
          EXPECT_LE(largest_relative_difference(run.gradients[job], ragged.gradients[job]), 1e-10)
              << company.jobs[job].name << ", layout " << static_cast<int>(layout) << ", sharing "
              << static_cast<int>(sharing) << ", budget " << budget;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, MethodGradients, ::testing::ValuesIn(tiny_families));

/// A chunk that the row goes on behind stands beside a longer row: pads would lie where the row's next tokens are.
TEST(MethodGradients, OfAPaddedRowThatIsCutAreThoseOfTheWholeRow) {
  const auto backbone = tiny_backbone("llama3", at::kDouble, 2048);
  const std::vector<RandomJob> long_row{lora_job("long", 1, 3, 0.2, {"all-linear"}, {1200})};
  const std::vector<RandomJob> with_neighbour{long_row.front(), lora_job("neighbour", 2, 3, 0.0, {"all-linear"}, {400})};
  const std::vector<RandomJob> of_one_job{lora_job("both", 1, 3, 0.2, {"all-linear"}, {500, 1200})};
  for (const std::vector<RandomJob>& jobs : {long_row, with_neighbour, of_one_job}) {
    Company company(backbone, jobs);
    const GradientRun ragged = company.gradients({.token_budget = 2048});
    const GradientRun padded = company.gradients({.layout = Layout::padded, .token_budget = 1024});
    for (size_t job = 0; job < jobs.size(); ++job) {
      EXPECT_NEAR(padded.losses[job], ragged.losses[job], 1e-10 * ragged.losses[job]);
      EXPECT_LE(largest_relative_difference(padded.gradients[job], ragged.gradients[job]), 1e-10) << jobs[job].name;
    }
  }
}

TEST(MethodGradients, OfPackedRowsDoNotDependOnTheChunkSize) {  // MX-23
  // One packed row of 256 in chunks of 256, two rows in smaller ones; every border inside a sequence or at its end, or chunks of 16
  // and sequences that share no border.
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{144, 64, 48}, {141, 67, 45}}) {
    Company company(tiny_backbone("llama3", at::kDouble),
                    {lora_job("lora", 1, 3, 0.2, {"all-linear"}, lengths), bottleneck_job("bottleneck", 2, 4, Activation::silu, lengths),
                     diff_pruning_job("diff", 3, 0.01, lengths)});
    const GradientRun whole = company.gradients();
    for (const int64_t chunk_size : {16, 64, 256}) {
      const GradientRun run = company.gradients({.layout = Layout::chunked, .token_budget = 256, .chunk_size = chunk_size});
      for (size_t job = 0; job < company.jobs.size(); ++job) {
        EXPECT_NEAR(run.losses[job], whole.losses[job], 1e-10 * whole.losses[job]);
        EXPECT_LE(largest_relative_difference(run.gradients[job], whole.gradients[job]), 1e-10)
            << company.jobs[job].name << ", first row " << lengths.front() << ", chunks of " << chunk_size;
      }
    }
  }
}

/// Whether a row that begins behind others of its packed row goes on in the next microbatch. What is packed behind the last cut of a
/// packed row shares an atom with others at most where it ends there: before a cut, an atom is all of one packed row.
bool cuts_a_row_with_an_offset(const StepPlan& plan) {
  for (const Microbatch& microbatch : plan.microbatches) {
    for (const RowPart& part : row_parts(microbatch)) {
      if (part.position == 0 && part.first_token > 0 && !ends_row(part)) return true;
    }
  }
  return false;
}

TEST(MethodGradients, OfPackedRowsThatMicrobatchesCutBehindOthersAreThoseOfTheWholeRows) {  // MX-23
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{640, 320, 300}, {640, 384, 256}}) {
    Company company(tiny_backbone("llama3", at::kDouble, 1024),
                    {lora_job("lora", 1, 3, 0.2, {"all-linear"}, lengths), bottleneck_job("bottleneck", 2, 4, Activation::silu, lengths),
                     diff_pruning_job("diff", 3, 0.01, lengths)});
    const GradientRun whole = company.gradients({.token_budget = 1024});
    for (const int64_t chunk_size : {64, 256}) {
      const PackingPolicy policy{.layout = Layout::chunked, .token_budget = 256, .chunk_size = chunk_size};
      const BatchShape batch{.row_lengths = lengths};
      EXPECT_TRUE(cuts_a_row_with_an_offset(plan_step(std::span(&batch, 1), policy))) << lengths[1] << ", chunks of " << chunk_size;
      const GradientRun run = company.gradients(policy);
      for (size_t job = 0; job < company.jobs.size(); ++job) {
        EXPECT_NEAR(run.losses[job], whole.losses[job], 1e-10 * whole.losses[job]);
        EXPECT_LE(largest_relative_difference(run.gradients[job], whole.gradients[job]), 1e-10)
            << company.jobs[job].name << ", second row " << lengths[1] << ", chunks of " << chunk_size;
      }
    }
  }
}

double evaluated_loss(Interpreter& interpreter, const RandomJob& job, Adapter* adapter) {
  const Batch batch = job.batch(0, interpreter.stage().backbone().config().vocabulary_size);
  JobRound round;
  round.adapter = adapter;
  round.batch = &batch;
  round.purpose = RoundPurpose::evaluate;
  return run_round(interpreter, {round}, {}).front().loss();
}

/// A dtype, on our kernels where they run or on ATen.
struct Way {
  at::ScalarType compute;
  bool portable;
};

class FreshAdapters : public ::testing::TestWithParam<Way> {};

TEST_P(FreshAdapters, LeaveEveryBitOfTheModelsLogits) {
  std::optional<PortableKernels> portable;
  if (GetParam().portable) portable.emplace();
  // Sizes of our kernels; and widths that are no multiples of 32, which ATen takes everywhere.
  std::vector<std::shared_ptr<const Backbone>> backbones{random_backbone(kernel_friendly_config(), GetParam().compute)};
  for (const std::string& family : tiny_families) backbones.push_back(tiny_backbone(family, GetParam().compute));
  for (const auto& backbone : backbones) {
    Interpreter interpreter(backbone);
    for (const Activation activation : {Activation::relu, Activation::gelu, Activation::silu, Activation::tanh}) {
      for (const RandomJob& job : one_of_each(activation)) {
        if (activation != Activation::relu && job.adapter.method != AdapterMethod::bottleneck) continue;  // the others have none
        const std::vector<BatchRow> rows = job.batch(0, backbone->config().vocabulary_size).rows;
        const at::Tensor base = model_logits(backbone, nullptr, rows);
        ASSERT_TRUE(at::isfinite(base).all().item<bool>());
        const auto adapter = job.make_adapter(backbone->config(), GetParam().compute);
        // On a GPU, cuBLAS takes another kernel for a product that is added to an adapter's terms.
        if (backbone->compute() == at::kBFloat16 && !test_device().is_cpu()) {
          EXPECT_LE(relative_difference(model_logits(backbone, adapter.get(), rows), base), 1.0 / 32) << job.name;
        } else {
          EXPECT_TRUE(at::equal(model_logits(backbone, adapter.get(), rows), base)) << job.name;
          select_alone(interpreter, job, *adapter);
          EXPECT_TRUE(at::equal(model_logits(backbone, adapter.get(), rows), base)) << job.name << ", selected";
          // The first training round, dropout and all, starts at the base model's loss.
          EXPECT_EQ(gradients_of(interpreter, {&job}, {adapter.get()}, {}).losses[0], evaluated_loss(interpreter, job, nullptr))
              << job.name;
        }
        randomise(*adapter, 1, 0.1);
        EXPECT_FALSE(at::equal(model_logits(backbone, adapter.get(), rows), base)) << job.name << ", changed";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, FreshAdapters,
                         ::testing::Values(Way{at::kDouble, false}, Way{at::kFloat, false}, Way{at::kFloat, true},
                                           Way{at::kBFloat16, false}, Way{at::kBFloat16, true}),
                         [](const auto& info) {
                           return std::string(c10::toString(info.param.compute)) + (info.param.portable ? "Portable" : "");
                         });

TEST(Evaluation, DropsNothingOut) {
  const auto backbone = tiny_backbone("smollm2", at::kDouble);
  Interpreter interpreter(backbone);
  RandomJob job = lora_job("lora", 1, 3, 0.0, {"all-linear"}, {12, 5});
  const auto adapter = job.make_adapter(backbone->config(), at::kDouble);
  randomise(*adapter, 1, 0.2);
  const double plain = evaluated_loss(interpreter, job, adapter.get());
  job.adapter.dropout = 0.5;
  const auto dropping = job.make_adapter(backbone->config(), at::kDouble);
  randomise(*dropping, 1, 0.2);
  EXPECT_EQ(evaluated_loss(interpreter, job, dropping.get()), plain);
  EXPECT_NE(gradients_of(interpreter, {&job}, {dropping.get()}, {}).losses[0], plain);
}

TEST(DiffPruning, KeepsTheEntriesOfLargestAccumulatedGradient) {
  const auto backbone = tiny_backbone("qwen2", at::kDouble);
  Interpreter interpreter(backbone);
  const RandomJob job = diff_pruning_job("job", 3, 0.013, {14, 60});
  RandomJob dense_job = job;
  dense_job.adapter.density = 1;  // keeps every entry: its values' gradients are the dense gradient
  const auto sparse = job.make_adapter(backbone->config(), at::kDouble),
             dense = dense_job.make_adapter(backbone->config(), at::kDouble);
  select_alone(interpreter, job, *sparse);
  select_alone(interpreter, dense_job, *dense);
  std::vector<at::Tensor> accumulated;
  for (int64_t batch = 0; batch < job.adapter.selection_batches; ++batch) {
    const GradientRun run = gradients_of(interpreter, {&dense_job}, {dense.get()}, {}, 0, batch);
    for (size_t i = 0; i < run.gradients[0].size(); ++i) {
      if (batch == 0) accumulated.push_back(at::zeros_like(run.gradients[0][i]));
      accumulated[i].add_(run.gradients[0][i]);
    }
  }
  const std::vector<Adapter::NamedTensor> structure = sparse->structure();
  ASSERT_EQ(structure.size(), 2 * accumulated.size());
  for (size_t site = 0; site < accumulated.size(); ++site) {
    const AdaptedModule& module = sparse->setup().modules[site];
    const ProjectionSize shape = projection_size(backbone->config(), module.projection);
    const at::Tensor host = accumulated[site].cpu();
    const double* gradient = host.const_data_ptr<double>();  // by column, by row within a column
    std::vector<int64_t> order(static_cast<size_t>(shape.in * shape.out));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return std::abs(gradient[a]) > std::abs(gradient[b]); });
    order.resize(static_cast<size_t>(std::ceil(0.013 * static_cast<double>(shape.in * shape.out))));
    std::sort(order.begin(), order.end());
    const at::Tensor rows = structure[2 * site].tensor.cpu(), offsets = structure[2 * site + 1].tensor.cpu();
    ASSERT_EQ(rows.numel(), static_cast<int64_t>(order.size()));
    size_t entry = 0;
    for (int64_t column = 0; column < shape.out; ++column) {
      for (int64_t i = offsets[column].item<int64_t>(); i < offsets[column + 1].item<int64_t>(); ++i) {
        ASSERT_EQ(order[entry++], column * shape.in + rows[i].item<int64_t>()) << module_name(module.layer, module.projection);
      }
    }
  }
}

}  // namespace
}  // namespace cotune::testing
