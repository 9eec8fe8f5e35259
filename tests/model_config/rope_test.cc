#include "model/config/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/file.h"

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
  const Json cases = Json::parse(read_file(COTUNE_SOURCE_DIR "/tests/model_config/data/rotary.json"));
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

}  // namespace
}  // namespace cotune
