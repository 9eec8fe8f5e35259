// The base model against transformers: the committed logits of every tiny model.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "engine/model_logits.h"
#include "engine/reference_job.h"
#include "formats/safetensors.h"

namespace cotune::testing {
namespace {

class ReferenceLogits : public ::testing::TestWithParam<std::string> {
 protected:
  /// max |ours − transformers'| over the model's rows.
  double distance_from_transformers(at::ScalarType compute) {
    const auto backbone = tiny_backbone(GetParam(), compute);
    const std::filesystem::path file = tiny_model_folder(GetParam()) / "logits.safetensors";
    const at::Tensor ids = read_tensor(file, "input_ids"), expected = read_tensor(file, "logits");
    const at::Tensor ours = model_logits(backbone, nullptr, rows_of(ids));
    return largest_difference(ours.reshape(expected.sizes()), expected);
  }
};

// The reference's rotary frequencies are computed in f32 (relative error up to 6e-8, times 24 positions), and its logits
// are rounded to f32.
TEST_P(ReferenceLogits, AreEqualInF64UpToTheReferencesRotaryTables) { EXPECT_LE(distance_from_transformers(at::kDouble), 1e-5); }
TEST_P(ReferenceLogits, AreNearInF32) { EXPECT_LE(distance_from_transformers(at::kFloat), 1e-4); }

INSTANTIATE_TEST_SUITE_P(Families, ReferenceLogits,
                         ::testing::Values("llama2", "llama3", "mistral", "qwen2", "smollm2", "gguf_llama",
                                           "gguf_qwen2"));

}  // namespace
}  // namespace cotune::testing
