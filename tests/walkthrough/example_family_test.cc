// The family that docs/adding-a-model-family.md adds, built from the page.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "engine/random_job.h"
#include "formats/error_message.h"
#include "model/config/families.h"
#include "model/config/model_config.h"

namespace cotune::testing {
namespace {

nlohmann::json example_json() {
  return nlohmann::json::parse(R"({"model_type": "example", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 100, "max_position_embeddings": 512, "rms_norm_eps": 1e-6,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "rope_theta": 10000.0})");
}

TEST(ExampleFamily, IsReadFromConfigJsonAndRefusesWhatThePageRefuses) {
  const ModelConfig config = parse_model_config(example_json().dump(), "config.json");
  EXPECT_EQ(config.family, "example");
  EXPECT_EQ(config.kv_head_count, 4) << "the default of the page";
  EXPECT_TRUE(config.qkv_bias);
  nlohmann::json json = example_json();
  json["use_sliding_window"] = true;
  EXPECT_THAT(user_error_of([&] { parse_model_config(json.dump(), "config.json"); }),
              ::testing::AllOf(::testing::HasSubstr("use_sliding_window"), ::testing::HasSubstr("a sliding window is not supported")));
}

TEST(ExampleFamily, IsKnownByItsNamesAndWritesAConfigJsonThatIsReadBack) {
  EXPECT_THAT(model_family_names(), ::testing::Contains("example"));
  ASSERT_NE(family_of_gguf("example"), nullptr);
  const ModelConfig config = parse_model_config(example_json().dump(), "config.json");
  const nlohmann::json written = nlohmann::json::parse(format_model_config(config));
  EXPECT_EQ(written.at("architectures").at(0), "ExampleForCausalLM");
  EXPECT_EQ(parse_model_config(written.dump(), "config.json"), config);
}

TEST(ExampleFamily, TrainsAsTheFamilyThatComputesTheSame) {
  const auto losses = [](const std::string& family) {
    ModelConfig config = kernel_friendly_config();
    config.family = family;
    Interpreter interpreter(random_backbone(config, at::kDouble));
    const RandomJob job = lora_job("a", 1, 4, 0, {"k_proj", "up_proj"}, {9, 5});
    JobLife life(0, job, interpreter.stage().backbone());
    run_lives(interpreter, {&life}, {});
    return life.losses();
  };
  EXPECT_EQ(losses("example"), losses("qwen2"));
}

}  // namespace
}  // namespace cotune::testing
