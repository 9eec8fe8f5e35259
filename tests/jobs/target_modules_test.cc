#include "jobs/target_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "jobs/module_pattern.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

using ::testing::HasSubstr;

JobSpec job_of(AdapterSpec adapter) {
  JobSpec job;
  job.name = "a";
  job.file = "j.yaml";
  job.line = 3;
  job.adapter = std::move(adapter);
  return job;
}

std::vector<std::string> names(const AdapterSpec& adapter, int64_t layer_count = 3) {
  std::vector<std::string> result;
  for (const AdaptedModule& module : resolve_target_modules(job_of(adapter), layer_count)) {
    result.push_back(module_name(module.layer, module.projection));
  }
  return result;
}

std::string mistake(const AdapterSpec& adapter, int64_t layer_count = 3) {
  try {
    resolve_target_modules(job_of(adapter), layer_count);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

std::vector<std::string> texts(const nlohmann::json& value) {
  return value.is_string() ? std::vector<std::string>{value} : value.get<std::vector<std::string>>();
}

TEST(TargetModules, RanksAndAlphasAreThoseOfPeft) {
  const auto reference =
      nlohmann::ordered_json::parse(read_file(source_folder() / "tests/jobs/data/target_modules.json"));
  for (const auto& reference_case : reference["cases"]) {
    const auto& config = reference_case["config"];
    AdapterSpec adapter{.r = reference["r"], .alpha = reference["alpha"]};
    if (config.contains("target_modules")) adapter.target_modules = texts(config["target_modules"]);
    if (config.contains("exclude_modules")) adapter.exclude_modules = texts(config["exclude_modules"]);
    if (config.contains("layers_to_transform")) config["layers_to_transform"].get_to(adapter.layers_to_transform);
    if (config.contains("rank_pattern")) {
      for (const auto& [key, value] : config["rank_pattern"].items()) adapter.rank_pattern.emplace_back(key, value);
    }
    if (config.contains("alpha_pattern")) {
      for (const auto& [key, value] : config["alpha_pattern"].items()) adapter.alpha_pattern.emplace_back(key, value);
    }
    std::map<std::string, std::pair<int64_t, double>> expected, found;
    for (const auto& [name, values] : reference_case["modules"].items()) expected[name] = {values[0], values[1]};
    for (const AdaptedModule& module : resolve_target_modules(job_of(adapter), reference["layers"])) {
      found[module_name(module.layer, module.projection)] = {module.r, module.alpha};
    }
    EXPECT_EQ(found, expected) << config;
  }
}

TEST(TargetModules, NamedInFullLieInAnyLayerWhateverTheOrder) {
  const std::vector<std::string> expected = {"model.layers.0.self_attn.q_proj", "model.layers.2.self_attn.q_proj"};
  EXPECT_EQ(names({.target_modules = {"q_proj", expected.back()}, .layers_to_transform = {0}}), expected);
  EXPECT_EQ(names({.target_modules = {expected.back(), "q_proj"}, .layers_to_transform = {0}}), expected);
  EXPECT_EQ(names({.target_modules = {"q_proj", "layers.2.self_attn.q_proj"}, .layers_to_transform = {0}}),
            std::vector<std::string>{expected.front()})
      << "a name that does not begin with the model's is none in full";
}

TEST(TargetModules, OfBottleneckAdaptersAreTheOutputsOfBothBlocks) {
  const AdapterSpec adapter{
      .method = AdapterMethod::bottleneck, .layers_to_transform = {1}, .bottleneck_size = 24};
  const std::vector<AdaptedModule> expected = {{1, Projection::o, 24, 0}, {1, Projection::down, 24, 0}};
  EXPECT_EQ(resolve_target_modules(job_of(adapter), 2), expected);
}

TEST(TargetModules, OfDiffPruningAreAllLinearUnlessGiven) {
  AdapterSpec adapter{.method = AdapterMethod::diff_pruning};
  EXPECT_EQ(names(adapter, 2).size(), 14u);
  adapter.target_modules = {"q_proj"};
  EXPECT_EQ(resolve_target_modules(job_of(adapter), 1), (std::vector<AdaptedModule>{{0, Projection::q, 0, 0}}));
}

TEST(TargetModules, ComeByLayerAndThenInTheOrderOfTheModel) {
  EXPECT_EQ(names({.target_modules = {"up_proj", "q_proj"}}, 2),
            (std::vector<std::string>{"model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj",
                                      "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"}));
}

TEST(TargetModules, DoNotMatchInTheMiddleOfAName) {
  EXPECT_EQ(names({.target_modules = {"1.self_attn.q_proj"}}, 12),
            std::vector<std::string>{"model.layers.1.self_attn.q_proj"});
}

TEST(TargetModules, ThatMatchNothingAreAMistake) {
  const std::string accepted =
      "; accepted: q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj, `all-linear` or one regular expression";
  const std::string place = "j.yaml:3: jobs.a.adapter.";
  EXPECT_EQ(mistake({.target_modules = {"proj"}}),
            place + "target_modules: `proj` matches no module of this model" + accepted);
  EXPECT_EQ(mistake({.target_modules = {"q_proj", "layers.3.mlp.up_proj"}}),
            place + "target_modules: `layers.3.mlp.up_proj` matches no module of this model" + accepted);
  EXPECT_EQ(mistake({.target_modules = {"q_proj|v_proj"}}),
            place + "target_modules: `q_proj|v_proj` matches no module of this model" + accepted);
  EXPECT_EQ(mistake({.exclude_modules = {"embed"}}),
            place + "exclude_modules: `embed` matches no module of this model" + accepted);
  EXPECT_EQ(mistake({.target_modules = {"q_proj"}, .exclude_modules = {"q_proj"}}),
            place + "target_modules: nothing is left to adapt: of 3 modules, exclude_modules leaves out 3");
  EXPECT_EQ(mistake({.target_modules = {"layers.0.self_attn.q_proj", "1.self_attn.q_proj"}, .exclude_modules = {"0.self_attn.q_proj"}, .layers_to_transform = {2}}),
            place + "target_modules: nothing is left to adapt: of 2 modules, exclude_modules leaves out 1, layers_to_transform leaves out 1");
  EXPECT_EQ(mistake({.layers_to_transform = {1, 3}}),
            place + "layers_to_transform: must be layers from 0 to 2 of this model, which has 3 layers; got 3");
  EXPECT_EQ(
      mistake({.rank_pattern = {{"up_proj", 4}}}),
      place + "rank_pattern: `up_proj` matches none of the job's target modules; accepted: names or expressions of those, q_proj, v_proj");
  const std::string in_patterns =
      "; accepted: names or expressions of modules, such as q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj";
  EXPECT_EQ(mistake({.alpha_pattern = {{"layers.9.*", 4}}}),
            place + "alpha_pattern: `layers.9.*` matches no module of this model" + in_patterns);
  EXPECT_EQ(mistake({.rank_pattern = {{std::string(all_linear), 3}}}),
            place + "rank_pattern: `all-linear` matches no module of this model" + in_patterns);
}

TEST(TargetModules, ThatMatchNothingAreAMistakeBehindAnEntryThatTheyEndIn) {
  EXPECT_THAT(mistake({.target_modules = {"q_proj", "layers.99.self_attn.q_proj"}}),
              HasSubstr("target_modules: `layers.99.self_attn.q_proj` matches no module of this model; accepted: q_proj, "));
  EXPECT_THAT(mistake({.target_modules = {std::string(all_linear)}, .exclude_modules = {"v_proj", "layers.3.self_attn.v_proj"}}),
              HasSubstr("exclude_modules: `layers.3.self_attn.v_proj` matches no module of this model"));
}

TEST(TargetModules, TellAllMistakesAtOnce) {
  const std::string message = mistake({.target_modules = {"proj", "q_proj", "qproj"},
                                       .exclude_modules = {"(", "v_proj"},
                                       .layers_to_transform = {7},
                                       .rank_pattern = {{"up", 4}, {"q_proj", 2}},
                                       .alpha_pattern = {{"[", 4}}});
  for (const char* part : {"target_modules: `proj` matches no", "target_modules: `qproj` matches no", "exclude_modules: `(` matches no",
                           "layers_to_transform: must be layers from 0 to 2", "rank_pattern: `up` matches no module of this model",
                           "alpha_pattern: `(.*\\.)?([)` is not a regular expression"}) {
    EXPECT_THAT(message, HasSubstr(part));
  }
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 5) << message;
}

TEST(TargetModules, OfAnAdaptersOwnConfigurationMayBeOfOtherModels) {
  const auto ignoring = [](const AdapterSpec& adapter) { return resolve_target_modules(job_of(adapter), 3, Unmatched::ignored); };
  EXPECT_EQ(ignoring({.target_modules = {"q_proj", "query_key_value"}, .layers_to_transform = {1, 40}}),
            ignoring({.target_modules = {"q_proj"}, .layers_to_transform = {1}}));
  try {
    ignoring({.target_modules = {"q_proj"}, .layers_to_transform = {40}});
    FAIL() << "nothing is left to adapt";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("target_modules: nothing is left to adapt: of 3 modules, layers_to_transform leaves out 3"));
  }
}

TEST(TargetModules, ShadowedByAnEarlierEntryAreNoMistake) {
  EXPECT_EQ(names({.target_modules = {"q_proj", "self_attn.q_proj", "layers.1.self_attn.q_proj"}}).size(), 3u);
}

TEST(TargetModules, WithAnExpressionThatBacktracksForEverAreAMistake) {
  EXPECT_EQ(mistake({.target_modules = {"((((.+)+)+)+)+[XY]"}}),
            "j.yaml:3: jobs.a.adapter.target_modules: `((((.+)+)+)+)+[XY]` cannot be matched: match limit exceeded");
}

}  // namespace
}  // namespace cotune
