// Gradients in bf16 point where those in f32 do: cosine per module at the first step (design: "exact").

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/random.h"
#include "engine/random_job.h"
#include "engine/reference_job.h"
#include "model_weights/smollm2_file.h"
#include "ops/backend.h"
#include "support/source_folder.h"

namespace cotune::testing {
namespace {

/// The gradients of one step, one vector per adapted module (all of its parameters one after another).
struct Step {
  double loss = 0;
  std::vector<std::string> modules;
  std::vector<at::Tensor> gradients;
};

Step first_step(const std::shared_ptr<const Backbone>& backbone, const RandomJob& job, const Batch& batch, const Adapter* like,
                double spread) {
  Interpreter interpreter(backbone);
  const auto adapter = job.make_adapter(backbone->config(), backbone->compute());
  if (like == nullptr) {
    select_alone(interpreter, job, *adapter);
  } else {
    adapter->restore_structure(like->structure(), true);  // the same kept entries, whatever the dtype they were chosen in
  }
  if (spread > 0) randomise(*adapter, job.seed, spread);
  JobRound round;
  round.adapter = adapter.get();
  round.batch = &batch;
  round.purpose = RoundPurpose::select;  // forward and backward, and no step
  round.dropout_key = job.dropout_key(0);
  Step step{run_round(interpreter, {round}, {}).front().loss(), {}, {}};
  const size_t each = adapter->parameters().size() / adapter->setup().modules.size();
  for (size_t site = 0; site < adapter->setup().modules.size(); ++site) {
    std::vector<at::Tensor> parts;
    for (size_t i = site * each; i < (site + 1) * each; ++i) {
      parts.push_back(adapter->parameters()[i].gradient.flatten().to(at::kDouble));
    }
    const AdaptedModule& module = adapter->setup().modules[site];
    step.modules.push_back(module_name(module.layer, module.projection));
    step.gradients.push_back(at::cat(parts));
  }
  return step;
}

/// The cosine of each module, ascending.
std::vector<double> cosines(const ModelFiles& files, const RandomJob& job, const Batch& batch, double spread) {
  const auto wide = Backbone::load(files, at::kFloat, test_device());
  std::unique_ptr<Adapter> selected;
  if (job.adapter.method == AdapterMethod::diff_pruning) {
    Interpreter interpreter(wide);
    selected = job.make_adapter(wide->config(), at::kFloat);
    select_alone(interpreter, job, *selected);
  }
  const Step f32 = first_step(wide, job, batch, selected.get(), spread);
  const Step bf16 = first_step(Backbone::load(files, at::kBFloat16, test_device()), job, batch, selected.get(), spread);
  EXPECT_NEAR(bf16.loss, f32.loss, 0.01 * f32.loss) << job.name;
  std::vector<double> all;
  for (size_t i = 0; i < f32.gradients.size(); ++i) {
    const double norms = f32.gradients[i].norm().item<double>() * bf16.gradients[i].norm().item<double>();
    EXPECT_GT(norms, 0) << f32.modules[i];
    const double cosine = (f32.gradients[i] * bf16.gradients[i]).sum().item<double>() / norms;
    EXPECT_FALSE(std::isnan(cosine)) << f32.modules[i];
    all.push_back(cosine);
  }
  std::sort(all.begin(), all.end());
  return all;
}

TEST(Bf16Gradients, OfTheFirstStepPointWhereThoseOfF32Do) {
  const ModelConfig qwen = kernel_friendly_config(4);  // biases, the head is the embedding
  ModelConfig llama = qwen;
  llama.family = "llama";
  llama.qkv_bias = llama.tied_embeddings = false;
  for (const ModelConfig& config : {qwen, llama}) {
    const ModelFiles files = random_model(config, 5);
    for (const RandomJob& job : {lora_job("lora", 1, 8, 0.1, {"all-linear"}, {90, 20, 300}),
                                 bottleneck_job("bottleneck", 2, 16, Activation::gelu, {90, 20, 300}),
                                 diff_pruning_job("diff pruning", 3, 0.02, {90, 20, 300})}) {
      for (const double spread : {0.0, 0.05}) {  // as initialised, where only B has a gradient, and as after training
        EXPECT_GE(cosines(files, job, job.batch(0, config.vocabulary_size), spread).front(), 0.999) << config.family << " " << job.name;
      }
    }
  }
}

/// Three paragraphs of English and one of Python, as SmolLM2's tokenizer has them: a story, why water boils cooler on a
/// mountain, the mean of a list, the capital of France. Every token is learned. PEFT's cosines on the same rows:
/// scripts/compare-references gradients.
Batch some_text() {
  Batch batch;
  for (const auto& row : nlohmann::json::parse(read_file(source_folder() / "tests/engine/data/gradient_rows.json"))) {
    const auto tokens = row.get<std::vector<int32_t>>();
    batch.rows.push_back({tokens, std::vector<uint8_t>(tokens.size(), 1), batch.rows.size()});
  }
  return batch;
}

TEST(Bf16Gradients, OfSmolLm2PointWhereThoseOfF32Do) {
  if (smollm2_file().empty()) GTEST_SKIP() << no_smollm2;
  const std::vector<double> all = cosines(open_model(smollm2_file()), lora_job("lora", 1, 16, 0, {"all-linear"}, {}), some_text(), 0);
  ASSERT_EQ(all.size(), 210u);
  const double lowest = all.front(), median = all[all.size() / 2];
  const auto below = static_cast<int>(std::ranges::lower_bound(all, 0.999) - all.begin());
  RecordProperty("lowest_cosine", std::to_string(lowest));
  RecordProperty("median_cosine", std::to_string(median));
  RecordProperty("below_0.999", below);
  // Thirty layers of products of bf16 cost the keys of single layers more than the 0.001 that the tiny model keeps, and how much depends on
  // the order of sums: 0.9972 on AMX, 0.9987 on AVX-512 and by ATen; 10 and 3 modules below 0.999. PEFT in bf16 reaches 0.992 on these rows,
  // with a median of 0.9989.
  EXPECT_GE(lowest, 0.996);
  EXPECT_LE(below, 20);
  EXPECT_GE(median, 0.9995);
}

}  // namespace
}  // namespace cotune::testing
