// Our logits where scripts/compare-references asks for them: of any model and adapter on this machine, in f32.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "adapter/adapter_file.h"
#include "base/file.h"
#include "engine/model_logits.h"
#include "engine/reference_job.h"

namespace cotune::testing {
namespace {

/// COTUNE_LOGITS_CASES is a JSON list of {name, model, adapter (or null), expected, limit}; expected: a safetensors
/// file of input_ids [rows, tokens] i64 and logits [rows, tokens, vocabulary]. Prints a line per case: LOGITS,
/// difference, name.
TEST(LiveLogits, AreThoseOfTheInstalledPackages) {
  const char* list = std::getenv("COTUNE_LOGITS_CASES");
  if (list == nullptr) GTEST_SKIP() << "set by scripts/compare-references";
  const nlohmann::json cases = nlohmann::json::parse(read_file(list));
  ASSERT_FALSE(cases.empty());
  for (const nlohmann::json& item : cases) {
    const auto backbone = Backbone::load(open_model(item.at("model").get<std::string>()), at::kFloat, at::kCPU);
    std::unique_ptr<Adapter> adapter;
    if (!item.at("adapter").is_null()) {
      const std::filesystem::path folder = item["adapter"].get<std::string>();
      adapter = make_adapter(backbone->config(), read_adapter_setup(folder, backbone->config()));
      load_adapter(*adapter, folder);
    }
    const std::filesystem::path reference = item.at("expected").get<std::string>();
    const at::Tensor expected = read_tensor(reference, "logits");
    const at::Tensor ours =
        model_logits(backbone, adapter.get(), rows_of(read_tensor(reference, "input_ids").to(at::kLong)));
    const double difference = (ours.reshape(expected.sizes()) - expected).abs().max().item<double>();
    std::printf("LOGITS %.3e %s\n", difference, item.at("name").get<std::string>().c_str());
    EXPECT_LE(difference, item.at("limit").get<double>()) << item["name"];
  }
}

}  // namespace
}  // namespace cotune::testing
