#include "model/config/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

using Json = nlohmann::json;

/// A configuration with these rotary parameters, through the reader of config.json.
ModelConfig config_with(int64_t head_dim, const Json& rope_parameters) {
  Json json = {{"model_type", "llama"},
               {"hidden_size", 2 * head_dim},
               {"intermediate_size", 8},
               {"num_hidden_layers", 1},
               {"num_attention_heads", 2},
               {"vocab_size", 8},
               {"max_position_embeddings", 131072}};
  json["rope_parameters"] = rope_parameters;
  return parse_model_config(json.dump(), "config.json");
}

TEST(RopeInverseFrequencies, EqualTransformersToItsF32Precision) {
  const Json cases = Json::parse(read_file(source_folder() / "tests/model_config/data/rotary.json"));
  ASSERT_EQ(cases.size(), 5u);
  for (const Json& each : cases) {
    const auto expected = each["inverse_frequencies"].get<std::vector<double>>();
    const auto found = rope_inverse_frequencies(config_with(each["head_dim"], each["rope_parameters"]));
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_NEAR(found[i], expected[i], 5e-7 * expected[i]) << each["rope_parameters"] << " " << i;
    }
  }
}

TEST(RopeInverseFrequencies, DivideByTheTableOfAGgufFile) {
  ModelConfig config = config_with(4, {{"rope_theta", 100.0}});
  config.rope_scaling.kind = RopeScaling::Kind::table;
  config.rope_scaling.divisors = {1, 8};
  const std::vector<double> frequencies = rope_inverse_frequencies(config);
  ASSERT_EQ(frequencies.size(), 2u);
  EXPECT_DOUBLE_EQ(frequencies[0], 1);
  EXPECT_DOUBLE_EQ(frequencies[1], std::pow(100.0, -0.5) / 8);
}

/// As a GGUF file has the scaling: what the frequencies are divided by, in f32.
ModelConfig with_table(ModelConfig config) {
  const std::vector<double> scaled = rope_inverse_frequencies(config);
  config.rope_scaling = {};
  const std::vector<double> plain = rope_inverse_frequencies(config);
  config.rope_scaling.kind = RopeScaling::Kind::table;
  for (size_t i = 0; i < plain.size(); ++i) config.rope_scaling.divisors.push_back(static_cast<float>(plain[i] / scaled[i]));
  return config;
}

TEST(NamedRopeScaling, IsTheOneThatATableWasMadeOf) {
  const Json llama3 = {{"rope_type", "llama3"}, {"rope_theta", 500000.0}, {"factor", 32.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  const Json linear = {{"rope_type", "linear"}, {"factor", 4.0}};
  for (const Json& parameters : {llama3, linear, Json({{"rope_theta", 1e6}})}) {
    const ModelConfig config = config_with(128, parameters);
    EXPECT_EQ(named_rope_scaling(config), config.rope_scaling) << parameters;
    EXPECT_EQ(named_rope_scaling(with_table(config)), config.rope_scaling) << parameters;
  }
  Json other = llama3;
  other["high_freq_factor"] = 5.0;
  EXPECT_EQ(named_rope_scaling(with_table(config_with(128, other))), std::nullopt);
}

}  // namespace
}  // namespace cotune
