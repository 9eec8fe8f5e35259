// Adapters on disk: every method round-trips to the bit, and hostile folders are refused in words that help.

#include "adapter/adapter_file.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/random.h"
#include "formats/error_message.h"
#include "formats/safetensors_bytes.h"
#include "formats/temporary_folder.h"
#include "support/adapter_bytes.h"
#include "support/source_folder.h"
#include "support/test_device.h"

namespace cotune {
namespace {

using testing::adapter_model_bytes;
using testing::optimizer_state_bytes;

using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

ModelConfig model() {
  return {.family = "llama",
          .layer_count = 3,
          .hidden_size = 64,
          .intermediate_size = 80,
          .head_count = 4,
          .kv_head_count = 2,
          .head_dim = 16,
          .vocabulary_size = 128,
          .context_length = 256};
}

AdapterSetup setup_of(const AdapterSpec& spec, at::ScalarType compute = at::kFloat) {
  JobSpec job;
  job.name = "job";
  job.adapter = spec;
  AdapterSetup setup;
  setup.spec = spec;
  setup.modules = resolve_target_modules(job, model().layer_count);
  setup.seed = 3;
  setup.compute = compute;
  setup.device = testing::test_device();
  return setup;
}

AdapterSpec lora_spec() {
  AdapterSpec spec;
  spec.target_modules = {"q_proj", "down_proj"};
  spec.layers_to_transform = {0, 2};
  spec.r = 4;
  spec.alpha = 12;
  spec.dropout = 0.125;
  spec.use_rslora = true;
  spec.rank_pattern = {{"layers.2.self_attn.q_proj", 7}};
  spec.alpha_pattern = {{"down_proj", 3}};
  return spec;
}

AdapterSpec bottleneck_spec() {
  AdapterSpec spec;
  spec.method = AdapterMethod::bottleneck;
  spec.bottleneck_size = 6;
  spec.activation = Activation::silu;
  spec.layers_to_transform = {1};
  return spec;
}

AdapterSpec diff_spec() {
  AdapterSpec spec;
  spec.method = AdapterMethod::diff_pruning;
  spec.density = 0.02;
  spec.target_modules = {"v_proj", "up_proj"};
  return spec;
}

/// Random kept entries, as a selection would leave them.
void keep_some_entries(Adapter& adapter) {
  if (adapter.method() != AdapterMethod::diff_pruning) return;
  std::vector<Adapter::NamedTensor> structure;
  for (const AdaptedModule& module : adapter.setup().modules) {
    const ProjectionSize shape = projection_size(model(), module.projection);
    std::vector<int32_t> rows;
    at::Tensor offsets = at::zeros({shape.out + 1}, at::kLong);
    for (int64_t column = 0; column < shape.out; ++column) {
      for (int32_t row = static_cast<int32_t>(column % 5); row < shape.in; row += 29) rows.push_back(row);
      offsets[column + 1] = static_cast<int64_t>(rows.size());
    }
    const std::string prefix = "base_model.model." + module_name(module.layer, module.projection) + ".diff_pruning.";
    structure.push_back({prefix + "rows", at::tensor(rows, at::kInt)});
    structure.push_back({prefix + "column_offsets", offsets});
  }
  adapter.restore_structure(structure, true);
}

std::unique_ptr<Adapter> trained_adapter(const AdapterSpec& spec, at::ScalarType compute = at::kFloat) {
  auto adapter = make_adapter(model(), setup_of(spec, compute));
  keep_some_entries(*adapter);
  uint64_t key = 0;
  for (Parameter& parameter : adapter->parameters()) {
    for (at::Tensor* tensor : {&parameter.value, &parameter.first_moment, &parameter.second_moment}) {
      ++key;
      at::Tensor values = at::empty(tensor->sizes(), at::kDouble);
      double* value = values.mutable_data_ptr<double>();
      for (int64_t i = 0; i < values.numel(); ++i) value[i] = uniform(key, static_cast<uint64_t>(i)) - 0.5;
      tensor->copy_(values);
    }
  }
  adapter->refresh();
  return adapter;
}

void write(const TemporaryFolder& folder, const Adapter& adapter) {
  folder.write(adapter_config_file, adapter_config_bytes(adapter, "base"));
  folder.write(adapter_model_file, adapter_model_bytes(adapter));
}

class RoundTrip : public ::testing::TestWithParam<AdapterSpec> {};

TEST_P(RoundTrip, OfAnAdapterAndItsMomentsIsExactToTheBit) {
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const auto saved = trained_adapter(GetParam(), compute);
    const TemporaryFolder folder;
    write(folder, *saved);
    const auto moments = folder.write("optimizer.safetensors", optimizer_state_bytes(*saved));

    AdapterSetup read = read_adapter_setup(folder.path(), model());
    EXPECT_EQ(read.modules, saved->setup().modules);
    EXPECT_EQ(read.spec.method, saved->method());
    EXPECT_EQ(read.spec.dropout, saved->setup().spec.dropout);
    EXPECT_EQ(read.spec.use_rslora, saved->setup().spec.use_rslora);
    EXPECT_EQ(read.spec.activation, saved->setup().spec.activation);
    EXPECT_EQ(read.spec.density, saved->setup().spec.density);
    read.compute = compute;
    read.device = testing::test_device();
    const auto loaded = make_adapter(model(), std::move(read));
    load_adapter(*loaded, folder.path());
    load_optimizer_state(*loaded, moments);
    ASSERT_EQ(loaded->parameters().size(), saved->parameters().size());
    for (size_t i = 0; i < saved->parameters().size(); ++i) {
      const Parameter &a = loaded->parameters()[i], &b = saved->parameters()[i];
      EXPECT_EQ(a.name, b.name);
      EXPECT_TRUE(at::equal(a.value, b.value)) << b.name;
      EXPECT_TRUE(at::equal(a.first_moment, b.first_moment)) << b.name;
      EXPECT_TRUE(at::equal(a.second_moment, b.second_moment)) << b.name;
    }
    EXPECT_EQ(adapter_model_bytes(*loaded), adapter_model_bytes(*saved));
    EXPECT_EQ(optimizer_state_bytes(*loaded), optimizer_state_bytes(*saved));
    // The configuration may say the same with other words (patterns by full names), but says them again for ever.
    const TemporaryFolder again;
    write(again, *loaded);
    EXPECT_EQ(read_file(again.path() / adapter_config_file), read_file(folder.path() / adapter_config_file));
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, RoundTrip, ::testing::Values(lora_spec(), bottleneck_spec(), diff_spec()),
                         [](const auto& info) { return "Method" + std::to_string(info.index); });

TEST(RoundTrip, OfDiffPruningBeforeItsSelectionIsAnEmptyAdapter) {
  const auto saved = make_adapter(model(), setup_of(diff_spec()));
  const TemporaryFolder folder;
  write(folder, *saved);
  const auto loaded = make_adapter(model(), setup_of(diff_spec()));
  load_adapter(*loaded, folder.path());
  EXPECT_TRUE(loaded->parameters().empty());
  EXPECT_GT(loaded->selection_passes(), 0);
}

TEST(RoundTrip, OfDiffPruningInTheMiddleOfItsSelectionGoesOnWithTheNextPass) {
  ModelConfig large = model();
  large.layer_count = 3;
  large.hidden_size = 1024;
  large.intermediate_size = 9216;  // 36 MiB of dense gradients per layer: a pass for each
  AdapterSpec spec = diff_spec();
  spec.target_modules = {"gate_proj"};
  JobSpec job;
  job.name = "job";
  job.adapter = spec;
  AdapterSetup setup;
  setup.spec = spec;
  setup.modules = resolve_target_modules(job, large.layer_count);
  setup.device = testing::test_device();
  const auto select = [](Adapter& adapter, int64_t first, int64_t end) {
    for (int64_t pass = first; pass < end; ++pass) {
      adapter.begin_selection(pass);
      adapter.end_selection(pass);
    }
  };
  const auto saved = make_adapter(large, setup), loaded = make_adapter(large, setup);
  ASSERT_EQ(saved->selection_passes(), 3);
  select(*saved, 0, 2);
  const TemporaryFolder folder;
  write(folder, *saved);
  load_adapter(*loaded, folder.path());
  EXPECT_EQ(loaded->selection_passes(), 3);
  EXPECT_EQ(loaded->finished_selection_passes(), 2);
  EXPECT_TRUE(loaded->parameters().empty());
  select(*saved, 2, 3);
  select(*loaded, 2, 3);
  EXPECT_EQ(loaded->selection_passes(), 0);
  EXPECT_EQ(loaded->parameters().size(), 3u);
  EXPECT_EQ(adapter_model_bytes(*loaded), adapter_model_bytes(*saved));
}

TEST(LoraFile, HasPeftsNamesShapesAndDtype) {
  const auto adapter = trained_adapter(lora_spec(), at::kBFloat16);
  const TemporaryFolder folder;
  write(folder, *adapter);
  const SafetensorsFile file(folder.path() / adapter_model_file);
  ASSERT_EQ(file.tensors().size(), 8u);
  const std::string q = "base_model.model.model.layers.2.self_attn.q_proj.", down = "base_model.model.model.layers.0.mlp.down_proj.";
  EXPECT_EQ(file.at(q + "lora_A.weight").shape, (std::vector<int64_t>{7, 64}));
  EXPECT_EQ(file.at(q + "lora_B.weight").shape, (std::vector<int64_t>{64, 7}));
  EXPECT_EQ(file.at(down + "lora_A.weight").shape, (std::vector<int64_t>{4, 80}));
  EXPECT_EQ(file.at(down + "lora_B.weight").shape, (std::vector<int64_t>{64, 4}));
  for (const auto& [name, view] : file.tensors()) EXPECT_EQ(view.dtype, DataType::f32) << name;
}

TEST(AdapterFormat, IsWhatItsPageSays) {
  const std::string page = read_file(source_folder() / "docs/adapter-format.md");
  for (const AdapterSpec& spec : {bottleneck_spec(), diff_spec()}) {
    const auto adapter = trained_adapter(spec);
    const Json config = Json::parse(adapter_config_bytes(*adapter, "base"));
    for (const auto& [key, value] : config.items()) EXPECT_THAT(page, HasSubstr("`" + key + "`"));
    EXPECT_THAT(page, HasSubstr("`" + config.at("peft_type").get<std::string>() + "`"));
    const std::string bytes = adapter_model_bytes(*adapter);
    const SafetensorsContent content = parse_safetensors(std::as_bytes(std::span(bytes)), "file");
    for (const auto& [name, view] : content.tensors) {
      const size_t place = name.find("_proj.");
      EXPECT_THAT(page, HasSubstr("`NAME." + name.substr(place + 6) + "`"));
    }
  }
}

/// A written adapter whose configuration and tensors a test may spoil.
class Spoiled {
 public:
  explicit Spoiled(const AdapterSpec& spec) : spec_(spec) { write(folder_, *trained_adapter(spec)); }

  std::string after(const std::string& key, const Json& value) const {
    Json config = this->config();
    const Json original = config;
    if (value.is_discarded()) {
      config.erase(key);
    } else {
      config[key] = value;
    }
    folder_.write(adapter_config_file, config.dump());
    const std::string message = user_error_of([&] { read_adapter_setup(folder_.path(), model()); });
    folder_.write(adapter_config_file, original.dump());
    return message;
  }

  Json config() const { return Json::parse(read_file(folder_.path() / adapter_config_file)); }

  template <typename Change>
  std::string with_tensors(Change change) const {
    const std::string original = read_file(folder_.path() / adapter_model_file);
    std::map<std::string, TensorView, std::less<>> tensors =
        parse_safetensors(std::as_bytes(std::span(original)), "copy").tensors;
    change(tensors);
    std::vector<NamedTensor> list;
    for (const auto& [name, view] : tensors) list.push_back({name, view});
    write_file_atomically(folder_.path() / adapter_model_file, safetensors_bytes(list));
    const auto adapter = make_adapter(model(), setup_of(spec_));
    const std::string message = user_error_of([&] { load_adapter(*adapter, folder_.path()); });
    folder_.write(adapter_model_file, original);
    return message;
  }

  const std::filesystem::path& path() const { return folder_.path(); }

 private:
  AdapterSpec spec_;
  TemporaryFolder folder_;
};

const Json absent = Json(nlohmann::json::value_t::discarded);

/// One configuration serves several architectures in PEFT, which passes over what a model has not.
TEST(ForeignAdapter, MayNameModulesThatTheModelHasNot) {
  const Spoiled lora(lora_spec());
  EXPECT_EQ(lora.after("exclude_modules", {"lm_head"}), "");
  EXPECT_EQ(lora.after("exclude_modules", "v_proj"), "") << "an expression on whole names, which leaves nothing out";
  EXPECT_EQ(lora.after("alpha_pattern", {{"query_key_value", 3}}), "");
  EXPECT_EQ(lora.after("rank_pattern", {{"o_proj", 4}}), "");
  Json targets = lora.config()["target_modules"];
  targets.push_back("query_key_value");
  EXPECT_EQ(lora.after("target_modules", targets), "");
  EXPECT_EQ(lora.after("layers_to_transform", {0, 2, 47}), "");
}

TEST(ForeignAdapter, MayLeaveLayerReplicationEmpty) {
  const Spoiled lora(lora_spec());
  EXPECT_EQ(lora.after("layer_replication", Json::array()), "");
  EXPECT_EQ(lora.after("layer_replication", nullptr), "");
  EXPECT_THAT(lora.after("layer_replication", Json::array({Json::array({0, 2}), Json::array({1, 3})})),
              HasSubstr("adapter_config.json: layer_replication: is not supported"));
}

TEST(HostileAdapter, ConfigurationsAreRefusedWithFileAndField) {
  const Spoiled lora(lora_spec()), bottleneck(bottleneck_spec()), diff(diff_spec());
  const auto says = [](const std::string& part) { return AllOf(HasSubstr("adapter_config.json"), HasSubstr(part)); };
  EXPECT_THAT(lora.after("peft_type", "IA3"), says("peft_type: must be LORA, COTUNE_BOTTLENECK or COTUNE_DIFF_PRUNING, got \"IA3\""));
  EXPECT_THAT(lora.after("peft_type", absent), says("peft_type: must be LORA, COTUNE_BOTTLENECK or COTUNE_DIFF_PRUNING, got nothing"));
  EXPECT_THAT(lora.after("peft_type", 7), says("peft_type: must be a text, got 7"));
  EXPECT_THAT(lora.after("use_dora", true), says("use_dora"));
  EXPECT_THAT(lora.after("bias", "all"), says("bias: `all`"));
  EXPECT_THAT(lora.after("modules_to_save", {"lm_head"}), says("modules_to_save"));
  EXPECT_THAT(lora.after("r", 0), says("r: must be a whole number from 1 to 512, got 0"));
  EXPECT_THAT(lora.after("r", 1'000'000'000), says("must be a whole number from 1 to 512, got 1000000000"));
  EXPECT_THAT(lora.after("r", "eight"), says("r: must be a whole number from 1 to 512, got \"eight\""));
  EXPECT_THAT(lora.after("rank_pattern", {{"q_proj", -3}}), says("rank_pattern.q_proj: must be a whole number from 1 to 512, got -3"));
  EXPECT_THAT(lora.after("lora_dropout", 1.0), says("lora_dropout: must be a number from 0 to below 1, got 1"));
  EXPECT_THAT(lora.after("target_modules", {"c_attn"}),
              says(": target_modules: nothing is left to adapt; accepted: q_proj, "));
  EXPECT_THAT(lora.after("layers_to_transform", {99}),
              says(": target_modules: nothing is left to adapt: of 6 modules, layers_to_transform leaves out 6"));
  EXPECT_THAT(bottleneck.after("bottleneck_size", 0), says("bottleneck_size: must be"));
  EXPECT_THAT(bottleneck.after("activation", "softplus"), says("must be relu, gelu, silu or tanh, got \"softplus\""));
  EXPECT_THAT(diff.after("density", 0), says("density: must be a number above 0 and at most 1, got 0"));
  EXPECT_THAT(diff.after("density", absent), says("density"));
  const TemporaryFolder folder;
  EXPECT_THAT(user_error_of([&] { read_adapter_setup(folder.path(), model()); }), HasSubstr("adapter_config.json"));
  folder.write(adapter_config_file, "{\"peft_type\": ");
  EXPECT_THAT(user_error_of([&] { read_adapter_setup(folder.path(), model()); }), HasSubstr("adapter_config.json:1: column 15: not JSON: unexpected end"));
  folder.write(adapter_config_file, "[]");
  EXPECT_THAT(user_error_of([&] { read_adapter_setup(folder.path(), model()); }), says("is not an adapter configuration"));
}

TEST(HostileAdapter, VariantsOfLoraAreRefusedByName) {
  const Spoiled lora(lora_spec());
  for (const char* name : {"use_bdlora", "kasa_config", "monteclora_config", "velora_config"}) {
    EXPECT_EQ(lora.after(name, nullptr), "");
    EXPECT_THAT(lora.after(name, Json::object()), HasSubstr(fmt::format("adapter_config.json: {}: is not supported, only plain LoRA is", name)));
  }
}

TEST(HostileAdapter, ConfigurationsNameTheFormOfPatternsAndLists) {
  const Spoiled lora(lora_spec());
  const auto says = [](const std::string& part) { return HasSubstr("adapter_config.json: " + part); };
  EXPECT_THAT(lora.after("rank_pattern", Json::array({"q_proj", 4})),
              says("rank_pattern: must be an object that gives regular expressions on modules' names, each, a whole number from 1 to 512, "
                   "got a list"));
  EXPECT_THAT(lora.after("alpha_pattern", "q_proj"),
              says("alpha_pattern: must be an object that gives regular expressions on modules' names, each, a number, got \"q_proj\""));
  EXPECT_THAT(lora.after("alpha_pattern", {{"q_proj", "two"}}), says("alpha_pattern.q_proj: must be a number, got \"two\""));
  EXPECT_THAT(lora.after("target_modules", {{"q_proj", 4}}),
              says("target_modules: must be a list of module names, or one name or regular expression, got an object"));
  EXPECT_THAT(lora.after("layers_to_transform", "all"),
              says("layers_to_transform: must be the number of a layer, counted from 0, or a list of such"));
}

TEST(HostileAdapter, ConfigurationsAreRefusedWithAllTheirMistakes) {
  TemporaryFolder folder;
  folder.write(adapter_config_file,
               R"({"peft_type": "LORA", "target_modules": 3, "bias": "all", "lora_alpha": null, "rank_pattern": [4]})");
  const std::string message = user_error_of([&] { read_adapter_setup(folder.path(), model()); });
  for (const char* field : {"target_modules", "bias", "r", "lora_alpha", "rank_pattern"}) {
    EXPECT_THAT(message, HasSubstr(fmt::format("adapter_config.json: {}: ", field)));
  }
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 4) << message;
}

TEST(HostileAdapter, PickledTensorsAreRefusedWithTheWayOut) {
  const Spoiled lora(lora_spec());
  std::filesystem::rename(lora.path() / adapter_model_file, lora.path() / "adapter_model.bin");
  const auto adapter = make_adapter(model(), setup_of(lora_spec()));
  EXPECT_THAT(user_error_of([&] { load_adapter(*adapter, lora.path()); }),
              AllOf(HasSubstr(lora.path().string() + ": holds adapter_model.bin but no adapter_model.safetensors"),
                    HasSubstr("save_pretrained('" + lora.path().string() + "', safe_serialization=True)")));
}

TEST(HostileAdapter, TensorsAreRefusedWithFileAndName) {
  const Spoiled lora(lora_spec());
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const auto says = [](const std::string& part) { return AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr(part)); };
  EXPECT_THAT(lora.with_tensors([&](auto& tensors) { tensors.erase(q); }), says(q));
  EXPECT_THAT(lora.with_tensors([&](auto& tensors) { tensors["surprise"] = tensors.at(q); }),
              says("surprise: does not belong to this adapter"));
  EXPECT_THAT(lora.with_tensors([&](auto& tensors) { tensors.at(q).shape = {64, 4}; }),
              says("has shape [64, 4], [4, 64] is expected"));
  EXPECT_THAT(lora.with_tensors([&](auto& tensors) { tensors.at(q).shape = {256}; }), says("has shape [256]"));
  const std::string b = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";
  EXPECT_THAT(lora.with_tensors([&](auto& tensors) { tensors.at(b).shape = {1, 64, 4}; }), says("has shape [1, 64, 4]"));
}

TEST(HostileAdapter, TensorsOfEmbeddingsAreRefusedWithTheReason) {
  const Spoiled lora(lora_spec());
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
  const auto with = [&](const std::string& name) { return lora.with_tensors([&](auto& tensors) { tensors[name] = tensors.at(q); }); };
  for (const std::string name : {"lm_head.base_layer.weight", "lm_head.lora_A.weight"}) {
    EXPECT_THAT(with("base_model.model." + name), HasSubstr(name + ": `lm_head` is not adapted by cotune, only the seven projections are"));
  }
  EXPECT_THAT(with("base_model.model.model.embed_tokens.lora_embedding_A"), HasSubstr("`embed_tokens` is not adapted by cotune"));
  EXPECT_THAT(with("base_model.model.lm_head.weight"),
              HasSubstr("lm_head.weight: PEFT saved `lm_head` with the adapter; save_pretrained(…, save_embedding_layers=False) leaves it out"));
  EXPECT_THAT(with("base_model.model.model.embed_tokens.weight"), HasSubstr("PEFT saved `embed_tokens` with the adapter"));
}

TEST(HostileAdapter, KeptEntriesAreCheckedBeforeAnyKernelReadsThem) {
  const Spoiled diff(diff_spec());
  const std::string site = "base_model.model.model.layers.0.self_attn.v_proj.diff_pruning.";
  const auto says = [](const std::string& part) { return AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr(part)); };
  // Copies of the offsets and rows, one value of which is spoiled.
  const auto spoil = [&](const std::string& part, size_t index, auto value) {
    std::vector<std::byte> copy;
    return diff.with_tensors([&](auto& tensors) {
      TensorView& view = tensors.at(site + part);
      copy.assign(view.bytes.begin(), view.bytes.end());
      std::memcpy(copy.data() + index * sizeof value, &value, sizeof value);
      view.bytes = copy;
    });
  };
  EXPECT_THAT(spoil("rows", 0, int32_t{-1}), says("entry 0 is -1"));
  EXPECT_THAT(spoil("rows", 0, int32_t{64}), says("rows ascend within a column and are below 64"));
  EXPECT_THAT(spoil("rows", 1, int32_t{0}), says("entry 1 is 0"));
  EXPECT_THAT(spoil("column_offsets", 0, int64_t{1}), says("does not ascend from 0"));
  EXPECT_THAT(spoil("column_offsets", 1, int64_t{1} << 40), says("does not ascend from 0"));
  EXPECT_THAT(spoil("column_offsets", 32, int64_t{3}), says("does not ascend from 0"));
  // Shapes that hold as many values as a list would.
  const auto reshape = [&](const std::string& part, const std::vector<int64_t>& before) {
    return diff.with_tensors([&](auto& tensors) {
      TensorView& view = tensors.at(site + part);
      view.shape.insert(view.shape.begin(), before.begin(), before.end());
    });
  };
  const std::string entries = std::to_string(trained_adapter(diff_spec())->parameters().front().value.numel());
  EXPECT_THAT(reshape("rows", {1}), says("v_proj.diff_pruning.rows` has shape [1, " + entries + "], one dimension is expected"));
  EXPECT_THAT(reshape("column_offsets", {1, 1}), says("v_proj.diff_pruning.column_offsets` has shape [1, 1, 33], [33] is expected"));
  const std::vector<int64_t> one_entry = [] {
    std::vector<int64_t> offsets(33, 1);
    offsets[0] = 0;
    return offsets;
  }();
  EXPECT_THAT(diff.with_tensors([&](auto& tensors) {
    tensors.at(site + "column_offsets").bytes = std::as_bytes(std::span(one_entry));
    tensors.at(site + "rows").shape = {};
    tensors.at(site + "rows").bytes = tensors.at(site + "rows").bytes.first(sizeof(int32_t));
  }),
              says("rows` has shape [], one dimension is expected"));
  EXPECT_THAT(diff.with_tensors([&](auto& tensors) { tensors.at(site + "column_offsets").shape = {11, 3}; }),
              says("column_offsets` has shape [11, 3], [33] is expected"));
  EXPECT_THAT(diff.with_tensors([&](auto& tensors) { tensors.erase(site + "rows"); }), says("rows` is missing"));
  EXPECT_THAT(diff.with_tensors([&](auto& tensors) { tensors.erase(site + "values"); }), says("values"));
}

TEST(HostileAdapter, OptimizerStatesOfAnotherShapeAreRefused) {
  const auto adapter = trained_adapter(lora_spec());
  AdapterSpec other = lora_spec();
  other.r = 5;
  const TemporaryFolder folder;
  const auto file = folder.write("optimizer.safetensors", optimizer_state_bytes(*trained_adapter(other)));
  EXPECT_THAT(user_error_of([&] { load_optimizer_state(*adapter, file); }),
              AllOf(HasSubstr("optimizer.safetensors"), HasSubstr("first_moment"), HasSubstr("is expected")));
}

}  // namespace
}  // namespace cotune
