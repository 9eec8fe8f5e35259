#include "model/config/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/error_message.h"
#include "formats/gguf_builder.h"
#include "formats/temporary_folder.h"
#include "model/config/families.h"

namespace cotune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json llama_json() {
  return Json::parse(
      R"({"model_type": "llama", "hidden_act": "silu", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "attention_bias": false, "mlp_bias": false, "bos_token_id": 1, "eos_token_id": 2, "rope_theta": 500000.0,
    "rope_scaling": null})");
}

Json with(Json json, const std::string& field, const Json& value) {
  json[field] = value;
  return json;
}

ModelConfig parse(const Json& json) {
  return parse_model_config(json.dump(), "config.json");
}
std::string refusal(const Json& json) {
  return user_error_of([&] { parse(json); });
}

TEST(ConfigJson, ReadsEveryField) {
  const ModelConfig config = parse(llama_json());
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.layer_count, 2);
  EXPECT_EQ(config.hidden_size, 64);
  EXPECT_EQ(config.intermediate_size, 96);
  EXPECT_EQ(config.head_count, 4);
  EXPECT_EQ(config.kv_head_count, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.vocabulary_size, 100);
  EXPECT_EQ(config.context_length, 512);
  EXPECT_EQ(config.rms_norm_epsilon, 1e-5);
  EXPECT_EQ(config.rope_theta, 500000);
  EXPECT_EQ(config.rope_scaling, RopeScaling{});
  EXPECT_TRUE(config.tied_embeddings);
  EXPECT_FALSE(config.qkv_bias);
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});
}

TEST(ConfigJson, ReadsOldAndNewRopeAlike) {
  const Json scaling = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  const ModelConfig old_style = parse(with(llama_json(), "rope_scaling", scaling));
  Json json = llama_json();
  json.erase("rope_theta");
  json.erase("rope_scaling");
  json["rope_parameters"] = scaling;
  json["rope_parameters"]["rope_theta"] = 500000.0;
  EXPECT_EQ(parse(json), old_style);
  EXPECT_EQ(old_style.rope_scaling.kind, RopeScaling::Kind::llama3);
  EXPECT_EQ(old_style.rope_scaling.factor, 8);
  EXPECT_EQ(old_style.rope_scaling.original_context, 8192);
}

TEST(ConfigJson, ReadsTheOldestNameOfTheRopeType) {
  const ModelConfig config = parse(with(llama_json(), "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}));
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(config.rope_scaling.factor, 2);
}

TEST(ConfigJson, TakesAListOfEndTokens) {
  EXPECT_EQ(parse(with(llama_json(), "eos_token_id", {7, 9})).eos_token_ids, (std::vector<int32_t>{7, 9}));
  EXPECT_TRUE(parse(with(llama_json(), "eos_token_id", nullptr)).eos_token_ids.empty());
}

TEST(ConfigJson, TakesAHeadSizeOfItsOwn) {
  const ModelConfig config = parse(with(llama_json(), "head_dim", 32));
  EXPECT_EQ(config.query_size(), 128);
  EXPECT_EQ(config.key_value_size(), 64);
}

TEST(ConfigJson, GivesAsManyKeyValueHeadsAsQueryHeadsToOldLlamas) {
  Json json = llama_json();
  json.erase("num_key_value_heads");
  EXPECT_EQ(parse(json).kv_head_count, 4);
}

TEST(ConfigJson, ReportsAllMistakesAtOnceWithFieldFoundAndAccepted) {
  Json json = llama_json();
  json["hidden_act"] = "gelu";
  json["num_hidden_layers"] = -1;
  json["rms_norm_eps"] = "small";
  json.erase("vocab_size");
  EXPECT_THAT(refusal(json),
              AllOf(HasSubstr("config.json: hidden_act: found \"gelu\"; accepted: \"silu\""),
                    HasSubstr("num_hidden_layers: found -1"), HasSubstr("rms_norm_eps: found \"small\""),
                    HasSubstr("vocab_size: found nothing")));
}

TEST(ConfigJson, RefusesFeaturesThatTheEngineLacks) {
  EXPECT_THAT(refusal(with(llama_json(), "attention_bias", true)), HasSubstr("attention_bias: found true"));
  EXPECT_THAT(refusal(with(llama_json(), "mlp_bias", true)), HasSubstr("mlp_bias: found true"));
  EXPECT_THAT(refusal(with(llama_json(), "quantization_config", Json::object())),
              HasSubstr("quantization_config"));
  EXPECT_THAT(refusal(with(llama_json(), "attention_dropout", 0.1)), HasSubstr("attention_dropout: found 0.1; accepted: null, false, 0"));
  EXPECT_EQ(refusal(with(llama_json(), "attention_dropout", 0.0)), "");
  EXPECT_THAT(refusal(with(llama_json(), "partial_rotary_factor", 0.5)),
              HasSubstr("partial_rotary_factor: found 0.5"));
  EXPECT_THAT(refusal(with(llama_json(), "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}})),
              AllOf(HasSubstr("rope_scaling.rope_type: found \"yarn\""), HasSubstr("\"llama3\"")));
  EXPECT_THAT(refusal(with(llama_json(), "rope_scaling", {{"type", "dynamic"}})),
              HasSubstr("rope_scaling.type: found \"dynamic\""));
  EXPECT_THAT(refusal(with(llama_json(), "rope_scaling", {{"rope_type", "linear"}})),
              HasSubstr("rope_scaling.factor: found nothing"));
  Json both = with(llama_json(), "rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}});
  both["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  EXPECT_THAT(refusal(both), HasSubstr("accepted: null where rope_parameters is given"));
}

TEST(ConfigJson, RefusesSizesBeyondAnyModel) {
  EXPECT_THAT(refusal(with(llama_json(), "num_hidden_layers", 1 << 30)),
              HasSubstr("accepted: a whole number from 1 to 4096"));
  EXPECT_THAT(refusal(with(llama_json(), "vocab_size", UINT64_MAX)),
              HasSubstr("vocab_size: found 18446744073709551615"));
}

TEST(ConfigJson, RefusesHeadsThatDoNotDivide) {
  EXPECT_THAT(refusal(with(llama_json(), "num_key_value_heads", 3)),
              HasSubstr("num_key_value_heads: found 3"));
  EXPECT_THAT(refusal(with(llama_json(), "num_attention_heads", 5)),
              HasSubstr("num_attention_heads: found 5"));
  EXPECT_THAT(refusal(with(llama_json(), "head_dim", 15)),
              HasSubstr("head_dim: found 15; accepted: an even number"));
}

TEST(ConfigJson, RefusesUnknownFamiliesAndListsTheKnown) {
  EXPECT_THAT(refusal(with(llama_json(), "model_type", "gpt2")),
              AllOf(HasSubstr("model_type: found \"gpt2\""), HasSubstr("\"qwen2\"")));
  EXPECT_THAT(refusal(Json::object()), HasSubstr("model_type: found nothing"));
}

TEST(ConfigJson, RefusesWhatIsNoJsonObject) {
  EXPECT_THAT(user_error_of([] { parse_model_config("{", "c.json"); }), HasSubstr("c.json:1: column 2: not JSON: unexpected end"));
  EXPECT_THAT(user_error_of([] { parse_model_config("[]", "c.json"); }),
              HasSubstr("c.json: must be a JSON object"));
  EXPECT_THAT(user_error_of([] {
                parse_model_config(
                    R"({"model_type": )" + std::string(100000, '[') + std::string(100000, ']') + "}",
                    "c.json");
              }),
              HasSubstr("model_type: found a list"));
}

TEST(FormatModelConfig, IsReadAsTheSameConfiguration) {
  const auto check = [](const ModelConfig& config) { EXPECT_EQ(parse_model_config(format_model_config(config), "config.json"), config); };
  for (const std::string& name : model_preset_names()) {
    if (!model_family(model_preset(name).family).shape_only) check(model_preset(name));
  }
  check(parse(llama_json()));
  check(parse(with(llama_json(), "model_type", "qwen2")));
  check(parse(with(llama_json(), "head_dim", 32)));
  check(parse(with(llama_json(), "eos_token_id", {7, 9})));
  check(parse(with(with(llama_json(), "eos_token_id", nullptr), "bos_token_id", nullptr)));
  check(parse(with(llama_json(), "rms_norm_eps", static_cast<double>(1e-5f))));
  check(parse(with(llama_json(), "rope_scaling", {{"rope_type", "linear"}, {"factor", 2.5}})));
  check(parse(with(llama_json(), "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0},
                                                  {"original_max_position_embeddings", 8192}})));
}

TEST(FormatModelConfig, SaysOfEveryFamilyWhatTransformersWouldTakeOtherwise) {
  const auto written = [](const char* preset) { return Json::parse(format_model_config(model_preset(preset))); };
  EXPECT_EQ(written("llama-2-7b")["architectures"], Json::array({"LlamaForCausalLM"}));
  EXPECT_EQ(written("qwen2.5-7b")["architectures"], Json::array({"Qwen2ForCausalLM"}));
  EXPECT_EQ(written("mistral-7b")["architectures"], Json::array({"MistralForCausalLM"}));
  EXPECT_TRUE(written("mistral-7b").contains("sliding_window"));
  EXPECT_TRUE(written("mistral-7b")["sliding_window"].is_null());
}

TEST(MistralConfig, NeedsTheWindowToBeOff) {
  Json json = with(llama_json(), "model_type", "mistral");
  EXPECT_THAT(refusal(json), HasSubstr("sliding_window: found nothing"));
  EXPECT_THAT(refusal(with(json, "sliding_window", 4096)),
              HasSubstr("sliding_window: found 4096; accepted: null"));
  EXPECT_EQ(parse(with(json, "sliding_window", nullptr)).family, "mistral");
}

TEST(MistralConfig, GivesAsManyKeyValueHeadsAsQueryHeadsWhereTheFieldIsNull) {
  const Json json = with(with(llama_json(), "model_type", "mistral"), "sliding_window", nullptr);
  EXPECT_EQ(parse(with(json, "num_key_value_heads", nullptr)).kv_head_count, 4);
  Json without = with(json, "num_attention_heads", 16);
  without.erase("num_key_value_heads");
  without["hidden_size"] = 128;
  EXPECT_EQ(parse(without).kv_head_count, 8) << "the default of transformers";
}

TEST(Qwen2Config, GivesAsManyKeyValueHeadsAsQueryHeadsWhereTheFieldIsNull) {
  const Json json = with(with(llama_json(), "model_type", "qwen2"), "num_key_value_heads", nullptr);
  EXPECT_EQ(parse(json).kv_head_count, 4);
  Json without = json;
  without.erase("num_key_value_heads");
  without["num_attention_heads"] = 64;
  without["hidden_size"] = 512;
  EXPECT_EQ(parse(without).kv_head_count, 32) << "the default of transformers";
}

TEST(Qwen2Config, HasBiasesAndNoWindow) {
  const Json json = with(llama_json(), "model_type", "qwen2");
  EXPECT_TRUE(parse(with(json, "sliding_window", 32768)).qkv_bias);
  EXPECT_THAT(refusal(with(json, "use_sliding_window", true)), HasSubstr("use_sliding_window: found true"));
}

GgufBuilder small_gguf(const std::string& architecture) {
  GgufBuilder builder;
  const std::string prefix = architecture + ".";
  builder.string("general.architecture", architecture)
      .u32(prefix + "block_count", 2)
      .u32(prefix + "context_length", 512);
  builder.u32(prefix + "embedding_length", 64).u32(prefix + "feed_forward_length", 96);
  builder.u32(prefix + "attention.head_count", 4).f32(prefix + "attention.layer_norm_rms_epsilon", 1e-5f);
  return builder;
}

std::string gguf_refusal(const GgufBuilder& builder, size_t data_bytes = 64 * 8 * 4) {
  const TemporaryFolder folder;
  const auto path = folder.write("m.gguf", builder.bytes(std::string(data_bytes, '\0')));
  return user_error_of([&] { model_config_from_gguf(GgufFile(path)); });
}

TEST(ConfigGguf, ReadsArchitectures) {
  const TemporaryFolder folder;
  for (const char* architecture : {"llama", "qwen2"}) {
    GgufBuilder builder = small_gguf(architecture);
    builder.u32(fmt::format("{}.attention.head_count_kv", architecture), 2)
        .f32(fmt::format("{}.rope.freq_base", architecture), 1e6f);
    builder.u32("tokenizer.ggml.eos_token_id", 2).tensor("token_embd.weight", {64, 8}, 0, 0);
    const GgufFile file(folder.write("m.gguf", builder.bytes(std::string(64 * 8 * 4, '\0'))));
    const ModelConfig config = model_config_from_gguf(file);
    EXPECT_EQ(config.family, architecture);
    EXPECT_EQ(config.head_dim, 16);
    EXPECT_EQ(config.kv_head_count, 2);
    EXPECT_EQ(config.vocabulary_size, 8);
    EXPECT_EQ(config.rope_theta, 1e6);
    EXPECT_TRUE(config.tied_embeddings);
    EXPECT_EQ(config.qkv_bias, std::string(architecture) == "qwen2");
    EXPECT_EQ(config.eos_token_ids, std::vector<int32_t>{2});
  }
}

/// As in llama.cpp.
TEST(ConfigGguf, ReadsLinearScalingUnderOldKeysAndWithoutAType) {
  const auto scaling_with = [](auto add) {
    const TemporaryFolder folder;
    GgufBuilder builder = small_gguf("llama");
    add(builder);
    builder.tensor("token_embd.weight", {64, 8}, 0, 0);
    const GgufFile file(folder.write("m.gguf", builder.bytes(std::string(64 * 8 * 4, '\0'))));
    return model_config_from_gguf(file).rope_scaling;
  };
  const RopeScaling by_four{.kind = RopeScaling::Kind::linear, .factor = 4}, none;
  EXPECT_EQ(scaling_with([](GgufBuilder& b) { b.f32("llama.rope.scale_linear", 4); }), by_four);
  EXPECT_EQ(scaling_with([](GgufBuilder& b) { b.f32("llama.rope.scaling.factor", 4); }), by_four);
  EXPECT_EQ(scaling_with([](GgufBuilder& b) { b.string("llama.rope.scaling.type", "linear").f32("llama.rope.scaling.factor", 4); }), by_four);
  EXPECT_EQ(scaling_with([](GgufBuilder& b) { b.string("llama.rope.scaling.type", "none").f32("llama.rope.scaling.factor", 4); }), none);
  EXPECT_EQ(scaling_with([](GgufBuilder& b) { b.f32("llama.rope.scaling.factor", 0).f32("llama.rope.scale_linear", 4); }), none);
  EXPECT_EQ(scaling_with([](GgufBuilder& b) { b.f32("llama.rope.scale_linear", 1); }), none);
}

TEST(ConfigGguf, RefusesOtherArchitecturesMissingKeysAndUnsupportedFeatures) {
  EXPECT_THAT(gguf_refusal(GgufBuilder().string("general.architecture", "gemma3")),
              AllOf(HasSubstr("general.architecture: found 'gemma3'"), HasSubstr("llama, qwen2")));
  EXPECT_THAT(
      gguf_refusal(
          GgufBuilder().string("general.architecture", "llama").tensor("token_embd.weight", {64, 8}, 0, 0)),
      AllOf(HasSubstr("llama.block_count: found nothing"),
            HasSubstr("llama.embedding_length: found nothing")));
  EXPECT_THAT(gguf_refusal(small_gguf("llama")), HasSubstr("token_embd.weight"));
  const auto refusal_with = [](auto add) {
    GgufBuilder builder = small_gguf("llama");
    add(builder);
    builder.tensor("token_embd.weight", {64, 8}, 0, 0);
    return gguf_refusal(builder);
  };
  EXPECT_EQ(refusal_with([](GgufBuilder&) {}), "");
  EXPECT_THAT(refusal_with([](GgufBuilder& b) { b.string("llama.rope.scaling.type", "yarn"); }),
              HasSubstr("llama.rope.scaling.type: found yarn; accepted: none, linear"));
  EXPECT_THAT(refusal_with([](GgufBuilder& b) { b.u32("llama.rope.dimension_count", 8); }),
              HasSubstr("llama.rope.dimension_count"));
  EXPECT_THAT(refusal_with([](GgufBuilder& b) { b.u32("llama.expert_count", 8); }),
              HasSubstr("llama.expert_count: found 8"));
  EXPECT_THAT(refusal_with([](GgufBuilder& b) { b.u32("llama.attention.head_count_kv", 3); }),
              HasSubstr("head_count_kv: found 3"));
  EXPECT_THAT(refusal_with([](GgufBuilder& b) { b.u32("llama.attention.value_length", 8); }),
              HasSubstr("value_length"));
}

TEST(Presets, HaveThePublishedSizes) {
  const auto billions = [](const char* name) {
    return static_cast<double>(parameter_count(model_preset(name))) / 1e9;
  };
  EXPECT_EQ(parameter_count(model_preset("smollm2-135m")), 134515008);
  EXPECT_EQ(parameter_count(model_preset("qwen2.5-0.5b")), 494032768);
  EXPECT_EQ(parameter_count(model_preset("llama-2-7b")), 6738415616);
  EXPECT_EQ(parameter_count(model_preset("llama-3-8b")), 8030261248);
  EXPECT_EQ(parameter_count(model_preset("qwen2.5-7b")), 7615616512);
  EXPECT_EQ(parameter_count(model_preset("tinyllama-1.1b")), 1100048384);
  EXPECT_NEAR(billions("llama-2-13b"), 13.016, 0.001);
  EXPECT_NEAR(billions("llama-2-70b"), 68.977, 0.001);
  EXPECT_NEAR(billions("llama-3-70b"), 70.554, 0.001);
  EXPECT_NEAR(billions("qwen2.5-32b"), 32.764, 0.001);
  EXPECT_NEAR(billions("smollm2-360m"), 0.3618, 0.0001);
  EXPECT_NEAR(billions("smollm2-1.7b"), 1.7114, 0.0001);
  EXPECT_NEAR(billions("mistral-7b"), 7.248, 0.001);
  EXPECT_NEAR(billions("gpt-2.7b"), 2.65, 0.01);
  EXPECT_NEAR(billions("opt-30b"), 29.97, 0.01);
}

TEST(Presets, OfFamiliesWithoutOperatorsCanOnlyBePlanned) {
  for (const char* name : {"gpt-2.7b", "opt-30b"}) {
    EXPECT_THAT(user_error_of([&] { require_engine_support(model_preset(name)); }), HasSubstr("can be planned but not trained"));
    EXPECT_FALSE(model_preset(name).gated);
  }
  EXPECT_NO_THROW(require_engine_support(model_preset("llama-2-7b")));
  nlohmann::json config = llama_json();
  config["model_type"] = "opt";
  EXPECT_THAT(user_error_of([&] { parse_model_config(config.dump(), "config.json"); }), HasSubstr("model_type"));
}

TEST(Presets, AreFoundInAnyCaseAndSuggestedWhenMisspelt) {
  EXPECT_EQ(model_preset("Qwen2.5-7B"), model_preset("qwen2.5-7b"));
  EXPECT_THAT(user_error_of([] { model_preset("lama-2-7b"); }),
              AllOf(HasSubstr("did you mean 'llama-2-7b'"), HasSubstr("mistral-7b")));
}

TEST(FindModelConfig, TakesPresetsFilesAndFolders) {
  const TemporaryFolder folder;
  folder.write("config.json", llama_json().dump());
  EXPECT_EQ(find_model_config("tinyllama-1.1b").layer_count, 22);
  EXPECT_EQ(find_model_config(folder.path().string()).hidden_size, 64);
  EXPECT_EQ(find_model_config((folder.path() / "config.json").string()).hidden_size, 64);
  EXPECT_THAT(user_error_of([] { find_model_config("/nowhere/config.json"); }),
              HasSubstr("/nowhere/config.json: no such file"));
}

TEST(ModelTensors, ListEveryTensorInTheOrderOfComputation) {
  ModelConfig config = parse(with(llama_json(), "model_type", "qwen2"));
  const std::vector<ModelTensor> tied = model_tensors(config);
  ASSERT_EQ(tied.size(), 2u + 2 * 12);
  EXPECT_EQ(tied.front().name, "model.embed_tokens.weight");
  EXPECT_EQ(tied[3].name, "model.layers.0.self_attn.q_proj.bias");
  EXPECT_EQ(tied[3].gguf_name, "blk.0.attn_q.bias");
  EXPECT_EQ(tied.back().name, "model.norm.weight");
  config.tied_embeddings = false;
  config.qkv_bias = false;
  const std::vector<ModelTensor> untied = model_tensors(config);
  ASSERT_EQ(untied.size(), 3u + 2 * 9);
  EXPECT_EQ(untied.back().name, "lm_head.weight");
  EXPECT_EQ(untied.back().shape, (std::vector<int64_t>{100, 64}));
}

TEST(ModelTensors, KeepTheRotaryOrderOfQueriesAndKeysPerArchitecture) {
  ModelConfig config = parse(llama_json());
  for (const ModelTensor& tensor : model_tensors(config)) {
    const bool rotary =
        tensor.name.find("q_proj") != std::string::npos || tensor.name.find("k_proj") != std::string::npos;
    EXPECT_EQ(tensor.gguf_rows, rotary ? GgufRows::rotary_pairs : GgufRows::same) << tensor.name;
  }
  config.family = "qwen2";
  for (const ModelTensor& tensor : model_tensors(config))
    EXPECT_EQ(tensor.gguf_rows, GgufRows::same) << tensor.name;
}

}  // namespace
}  // namespace cotune
