// The base model against transformers: the committed logits of every tiny model.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "engine/model_logits.h"
#include "engine/reference_job.h"
#include "formats/gguf.h"
#include "formats/safetensors.h"
#include "model/weights/model_files.h"
#include "support/test_device.h"

namespace cotune::testing {
namespace {

/// max |ours − transformers'| over the rows of `folder`/logits.safetensors.
double distance_from_transformers(const std::shared_ptr<const Backbone>& backbone, const std::filesystem::path& folder) {
  const at::Tensor ids = read_tensor(folder / "logits.safetensors", "input_ids"), expected = read_tensor(folder / "logits.safetensors", "logits");
  const at::Tensor ours = model_logits(backbone, nullptr, rows_of(ids));
  return largest_difference(ours.reshape(expected.sizes()), expected);
}

class ReferenceLogits : public ::testing::TestWithParam<std::string> {
 protected:
  double distance_in(at::ScalarType compute) {
    return distance_from_transformers(tiny_backbone(GetParam(), compute), tiny_model_folder(GetParam()));
  }
};

// The reference's rotary frequencies are computed in f32 (relative error up to 6e-8, times 24 positions), and its logits
// are rounded to f32.
TEST_P(ReferenceLogits, AreEqualInF64UpToTheReferencesRotaryTables) { EXPECT_LE(distance_in(at::kDouble), 1e-5); }
TEST_P(ReferenceLogits, AreNearInF32) { EXPECT_LE(distance_in(at::kFloat), 1e-4); }

INSTANTIATE_TEST_SUITE_P(Families, ReferenceLogits,
                         ::testing::Values("llama2", "llama3", "mistral", "qwen2", "smollm2", "gguf_llama",
                                           "gguf_qwen2"));

/// GGUF files whose matrices are blocks; transformers computed with what the Python package `gguf` reads in them.
struct QuantisedModel {
  std::string name;
  std::set<GgufType> types;  ///< of its matrices
};
void PrintTo(const QuantisedModel& model, std::ostream* out) { *out << model.name; }

class QuantisedLogits : public ::testing::TestWithParam<QuantisedModel> {
 protected:
  std::filesystem::path folder_ = tiny_model_folder(GetParam().name), file_ = folder_ / "model.gguf";
  double distance_in(at::ScalarType compute) {
    return distance_from_transformers(Backbone::load(open_model(file_), compute, test_device()), folder_);
  }
  double largest_logit() { return read_tensor(folder_ / "logits.safetensors", "logits").abs().max().item<double>(); }
};

TEST_P(QuantisedLogits, AreThoseOfAFileThatHasTheseTypesInAllMatrices) {
  std::set<GgufType> found;
  const GgufFile file(file_);
  for (const auto& [name, tensor] : file.tensors()) {
    if (tensor.shape.size() > 1) found.insert(tensor.type);
  }
  EXPECT_EQ(found, GetParam().types);
}
// Of logits up to 39 here; transformers has norms, rotary tables and softmax in f32, which moves its own by 5e-7 of the largest.
TEST_P(QuantisedLogits, AreEqualInF64UpToTheReferencesPartsInF32) { EXPECT_LE(distance_in(at::kDouble), 1e-6 * largest_logit()); }
// 1e-4 would be 26 units in the last place of 39: ATen's operators are 7.5e-5 away there, those of kernels/ on AVX2 1.0e-4.
TEST_P(QuantisedLogits, AreNearInF32) { EXPECT_LE(distance_in(at::kFloat), 4e-6 * std::max(largest_logit(), 25.)); }

using enum GgufType;
INSTANTIATE_TEST_SUITE_P(Types, QuantisedLogits,
                         ::testing::Values(QuantisedModel{"gguf_k_quants", {Q2_K, Q3_K, Q4_K, Q5_K, Q6_K}},
                                           QuantisedModel{"gguf_short_blocks", {Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, F16, BF16}}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cotune::testing
