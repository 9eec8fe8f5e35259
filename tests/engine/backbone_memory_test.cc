// What the frozen model takes, and what loading it takes beside that.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/backbone.h"
#include "engine/generation.h"
#include "engine/memory_facts.h"
#include "engine/random_job.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "schedule/memory/weight_memory.h"

namespace cotune::testing {
namespace {

class BackboneMemory : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
};

int64_t bytes_of(const RotaryTable& table) { return static_cast<int64_t>(table.cosine.nbytes() + table.sine.nbytes()); }

TEST_F(BackboneMemory, ForGenerationIsWithoutBackwardFormsAndAnswersAlike) {
  const ModelFiles files = random_model(kernel_friendly_config(), 5);
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    const auto for_training = Backbone::load(files, compute, at::kCPU);
    const auto for_generation = Backbone::load(files, compute, at::kCPU, {.training = false});
    // The second direction is there only where our kernels run.
    const bool packed = for_training->layer(0).down->bytes() > for_generation->layer(0).down->bytes();
    if (packed) {
      EXPECT_EQ(2 * for_generation->layer(0).down->bytes(), for_training->layer(0).down->bytes());
      EXPECT_EQ(2 * for_generation->head().bytes(), for_training->head().bytes());
    }
    GenerationRequest request;
    request.prompt = {5, 9, 200, 17};
    request.max_new_tokens = 8;
    const auto answer = [&](const std::shared_ptr<Backbone>& backbone) {
      return Generator(backbone).generate({&request, 1}).front().tokens;
    };
    EXPECT_EQ(answer(for_training), answer(for_generation));
  }
}

TEST_F(BackboneMemory, OfLoadingIsThatOfTheWeightsAndOneProductAtATime) {
  ModelConfig config = kernel_friendly_config(8);
  config.context_length = 200'000;
  const ModelFiles files = random_model(config, 5);
  const int64_t before = memory_usage().live_bytes();
  reset_memory_peaks();
  const auto backbone = Backbone::load(files, at::kBFloat16, at::kCPU, {.positions = 300});
  const int64_t rows_of_head = config.vocabulary_size * config.hidden_size;
  const int64_t largest_product = std::max(rows_of_head, 2 * config.intermediate_size * config.hidden_size);
  EXPECT_EQ(backbone->positions(), 300);
  EXPECT_EQ(memory_usage().live_bytes() - before, backbone->weight_bytes());
  // Beside it: one product's values in f32 (the random model makes them so), in bf16, and joined for the second direction.
  EXPECT_LE(memory_usage().peak_live_bytes - before, backbone->weight_bytes() + (4 + 2 + 2) * largest_product);
}

TEST_F(BackboneMemory, OfATiedEmbeddingIsTheHeadsAndItsRowsAreTheFiles) {
  const at::Tensor tokens = at::tensor({7, 0, 255, 31, 32, 7}, at::kLong);
  for (const bool tied : {true, false}) {
    ModelConfig config = kernel_friendly_config();
    config.tied_embeddings = tied;
    const ModelFiles files = random_model(config, 5);
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kDouble}) {
      const at::Tensor rows = files.load("model.embed_tokens.weight", compute).index_select(0, tokens);
      for (const bool training : {true, false}) {
        const auto backbone = Backbone::load(files, compute, at::kCPU, {.training = training});
        EXPECT_TRUE(backbone->embed(tokens).equal(rows)) << "tied " << tied << ", training " << training << ", " << compute;
      }
    }
  }
}

TEST_F(BackboneMemory, OfTheWeightsIsWhatIsPredicted) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    const auto backbone = random_backbone(kernel_friendly_config(3), compute, at::kCPU);
    const MemoryFacts facts = memory_facts(compute, at::kCPU);
    const int64_t weights = backbone->weight_bytes() - bytes_of(backbone->rotary());
    EXPECT_GE(predict_weight_bytes(backbone->config(), facts), weights);
    EXPECT_LE(predict_weight_bytes(backbone->config(), facts), weights * 101 / 100);
    EXPECT_EQ(predict_weight_bytes(backbone->config(), facts, backbone->positions()) - predict_weight_bytes(backbone->config(), facts),
              bytes_of(backbone->rotary()));
  }
}

}  // namespace
}  // namespace cotune::testing
