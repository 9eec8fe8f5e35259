// LoRA folders as we write them, in PEFT: tests/engine/data/adapter holds folders that this test writes and the logits
// that PEFT makes of them (scripts/reference/adapter_reference.py, which also runs this test to write them anew).

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "adapter/adapter_file.h"
#include "base/file.h"
#include "engine/model_logits.h"
#include "engine/random_job.h"
#include "engine/reference_job.h"
#include "support/adapter_bytes.h"
#include "support/source_folder.h"

namespace cotune::testing {
namespace {

namespace fs = std::filesystem;

struct Case {
  std::string name;
  std::string family;
  RandomJob job;
};

std::ostream& operator<<(std::ostream& out, const Case& item) { return out << item.name; }

std::vector<Case> cases() {
  RandomJob patterns = lora_job("patterns", 31, 4, 0.1, {"q_proj", "v_proj", "o_proj", "down_proj"}, {1});
  patterns.adapter.use_rslora = true;
  patterns.adapter.layers_to_transform = {1};
  patterns.adapter.rank_pattern = {{"o_proj", 7}, {"layers.1.mlp.down_proj", 2}};
  patterns.adapter.alpha_pattern = {{"v_proj", 3}};
  RandomJob mixed = lora_job("mixed", 33, 3, 0, {R"(model\.layers\.0\.self_attn\.[qk]_proj|model\.layers\.1\.mlp\..*)"}, {1});
  mixed.adapter.rank_pattern = {{"up_proj", 5}};
  return {{"patterns", "smollm2", patterns},
          {"all_linear", "qwen2", lora_job("all_linear", 32, 3, 0, {"all-linear"}, {1})},
          {"mixed_layers", "llama3", mixed}};
}

class SavedAdapter : public ::testing::TestWithParam<Case> {
 protected:
  static fs::path folder() { return source_folder() / "tests/engine/data/adapter" / GetParam().name; }
};

TEST_P(SavedAdapter, HasTheBytesThatPeftWasGiven) {
  const auto adapter = GetParam().job.make_adapter(tiny_backbone(GetParam().family, at::kFloat)->config(), at::kFloat);
  randomise(*adapter, GetParam().job.seed, 0.3);
  const std::string config = adapter_config_bytes(*adapter, GetParam().family), values = adapter_model_bytes(*adapter);
  if (const char* target = std::getenv("COTUNE_WRITE_ADAPTERS")) {
    fs::create_directories(fs::path(target) / GetParam().name);
    write_file_atomically(fs::path(target) / GetParam().name / adapter_config_file, config);
    write_file_atomically(fs::path(target) / GetParam().name / adapter_model_file, values);
    return;
  }
  EXPECT_EQ(config, read_file(folder() / adapter_config_file));
  EXPECT_TRUE(values == read_file(folder() / adapter_model_file));
}

TEST_P(SavedAdapter, GivesPeftsLogits) {
  for (const auto& [compute, allowed] : std::vector<std::pair<at::ScalarType, double>>{{at::kDouble, 1e-5}, {at::kFloat, 1e-4}}) {
    const auto backbone = tiny_backbone(GetParam().family, compute);
    AdapterSetup setup = read_adapter_setup(folder(), backbone->config());
    setup.compute = compute;
    setup.device = test_device();
    const auto adapter = make_adapter(backbone->config(), std::move(setup));
    load_adapter(*adapter, folder());
    const at::Tensor ids = read_tensor(folder() / "logits.safetensors", "input_ids"),
                     expected = read_tensor(folder() / "logits.safetensors", "logits");
    const at::Tensor ours = model_logits(backbone, adapter.get(), rows_of(ids));
    EXPECT_LE(largest_difference(ours.reshape(expected.sizes()), expected), allowed);
    const at::Tensor base = model_logits(backbone, nullptr, rows_of(ids));
    EXPECT_GT(relative_difference(base.reshape(expected.sizes()), expected), 1e-2) << "the adapter changes nothing";
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, SavedAdapter, ::testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace cotune::testing
