#include "model/weights/model_files.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "formats/error_message.h"
#include "formats/safetensors_bytes.h"
#include "formats/temporary_folder.h"
#include "model/config/families.h"
#include "model/config/rope.h"
#include "model_weights/smollm2_file.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

const fs::path model_data = source_folder() / "tests/model_weights/data";

bool same_memory(const at::Tensor& a, const at::Tensor& b) {
  return a.const_data_ptr() == b.const_data_ptr();
}

/// A copy of a reference model whose files a test may spoil.
class CopiedModel {
 public:
  explicit CopiedModel(const std::string& name) {
    fs::copy(model_data / name, folder_.path(), fs::copy_options::recursive);
  }
  const fs::path& path() const { return folder_.path(); }
  void replace_in(const std::string& file, const std::string& from, const std::string& to) const {
    std::string text = read_file(path() / file);
    const size_t place = text.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    write_file_atomically(path() / file, text.replace(place, from.size(), to));
  }
  /// Rewrites model.safetensors with some tensors changed.
  template <typename Change>
  void rewrite_weights(Change change) const {
    const std::string bytes = read_file(path() / "model.safetensors");
    std::map<std::string, TensorView, std::less<>> tensors =
        parse_safetensors(std::as_bytes(std::span(bytes)), "copy").tensors;
    change(tensors);
    std::vector<NamedTensor> list;
    for (const auto& [name, view] : tensors) list.push_back({name, view});
    write_file_atomically(path() / "model.safetensors", safetensors_bytes(list));
  }
  std::string refusal() const {
    return user_error_of([&] { open_model(path()); });
  }

 private:
  TemporaryFolder folder_;
};

class ReferenceModel : public ::testing::TestWithParam<const char*> {};

TEST_P(ReferenceModel, OpensWithEveryTensorInEveryDtype) {
  const ModelFiles model = open_model(model_data / GetParam());
  for (const ModelTensor& tensor : model_tensors(model.config)) {
    const at::Tensor f32 = model.load(tensor.name, at::kFloat);
    EXPECT_EQ(f32.sizes().vec(), tensor.shape) << tensor.name;
    EXPECT_TRUE(f32.is_contiguous());
    EXPECT_EQ(model.weights->stored_dtype(tensor.name), at::kFloat);
    for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
      EXPECT_TRUE(at::equal(model.load(tensor.name, dtype), f32.to(dtype))) << tensor.name;
    }
  }
}

TEST_P(ReferenceModel, HasTheRotaryFrequenciesOfTransformers) {
  const ModelFiles model = open_model(model_data / GetParam());
  const SafetensorsFile reference(model_data / GetParam() / "logits.safetensors");
  const TensorView& view = reference.at("inverse_frequencies");
  const auto* expected = reinterpret_cast<const double*>(view.bytes.data());
  const std::vector<double> found = rope_inverse_frequencies(model.config);
  ASSERT_EQ(found.size() * sizeof(double), view.bytes.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 5e-7 * expected[i]);
}

INSTANTIATE_TEST_SUITE_P(Families, ReferenceModel,
                         ::testing::Values("llama2", "llama3", "mistral", "qwen2", "smollm2", "gguf_llama",
                                           "gguf_qwen2"),
                         [](const auto& info) { return std::string(info.param); });

class GgufTwin : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufTwin, HoldsTheSameModelAsTheFolder) {
  const ModelFiles folder = open_model(model_data / GetParam());
  const ModelFiles gguf = open_model(model_data / GetParam() / "model.gguf");
  for (const ModelTensor& tensor : model_tensors(folder.config)) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      EXPECT_TRUE(at::equal(gguf.load(tensor.name, dtype), folder.load(tensor.name, dtype)))
          << tensor.name << " " << dtype;
    }
  }
  const std::vector<double> expected = rope_inverse_frequencies(folder.config),
                            found = rope_inverse_frequencies(gguf.config);
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-6 * expected[i]);
  ModelConfig config = gguf.config;
  EXPECT_NEAR(config.rms_norm_epsilon, folder.config.rms_norm_epsilon, 1e-12);  // f32 in the file
  config.rms_norm_epsilon = folder.config.rms_norm_epsilon;
  config.rope_scaling = folder.config.rope_scaling;
  config.dtype = folder.config.dtype;
  EXPECT_EQ(config, folder.config);
  EXPECT_EQ(gguf.tokenizer.chat_template, "{{ messages[0].content }}");
  EXPECT_EQ(gguf.tokenizer.end_of_turn_ids, std::vector<int32_t>{2});
}

INSTANTIATE_TEST_SUITE_P(Architectures, GgufTwin, ::testing::Values("gguf_llama", "gguf_qwen2"),
                         [](const auto& info) { return std::string(info.param); });

TEST(LoadFromSafetensors, IsAViewOfTheMappingWhichOutlivesTheModel) {
  at::Tensor kept, copy;
  {
    const ModelFiles model = open_model(model_data / "llama2");
    kept = model.load("model.norm.weight", at::kFloat);
    EXPECT_TRUE(same_memory(kept, model.load("model.norm.weight", at::kFloat)));
    EXPECT_FALSE(same_memory(kept, model.load("model.norm.weight", at::kDouble)));
    copy = kept.clone();
  }
  EXPECT_TRUE(at::equal(kept, copy));
}

TEST(LoadFromSafetensors, CopiesTensorsThatTheFileLeavesUnaligned) {
  const CopiedModel model("gguf_qwen2");
  const at::Tensor expected = open_model(model_data / "gguf_qwen2").load("model.norm.weight", at::kFloat);
  std::string bytes = read_file(model.path() / "model.safetensors");
  const auto length = static_cast<uint8_t>(bytes[0]);
  bytes[0] = static_cast<char>(length + 1);  // one space more in the header; its low byte does not carry
  ASSERT_LT(length, 255);
  size_t header = 0;
  for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<uint8_t>(bytes[static_cast<size_t>(i)]);
  bytes.insert(8 + header - 1, " ");
  write_file_atomically(model.path() / "model.safetensors", bytes);
  EXPECT_TRUE(at::equal(open_model(model.path()).load("model.norm.weight", at::kFloat), expected));
}

TEST(LoadWeights, SaysThatAnUnknownNameIsABug) {
  EXPECT_THROW(open_model(model_data / "llama2").load("model.nothing", at::kFloat), InternalError);
  EXPECT_THROW(open_model(model_data / "gguf_llama" / "model.gguf").load("model.nothing", at::kFloat),
               InternalError);
}

TEST(OpenModel, TakesEndOfTurnFromConfigurations) {
  EXPECT_EQ(open_model(model_data / "llama3").tokenizer.end_of_turn_ids, (std::vector<int32_t>{2, 5}));
}

TEST(OpenModel, ReportsEveryMissingUnknownAndMisshapenTensorAtOnce) {
  const CopiedModel model("gguf_qwen2");
  model.rewrite_weights([](auto& tensors) {
    tensors["model.layers.0.self_attn.q_norm.weight"] = tensors["model.norm.weight"];
    tensors.erase("model.layers.1.self_attn.q_proj.bias");
    tensors["model.layers.0.mlp.up_proj.weight"].shape = {32, 64};
    tensors["model.norm.weight"].dtype = DataType::i32;
  });
  EXPECT_THAT(model.refusal(),
              AllOf(HasSubstr("model.layers.1.self_attn.q_proj.bias: missing"),
                    HasSubstr("model.safetensors: model.layers.0.mlp.up_proj.weight: has shape [32, 64]; "
                              "config.json says [64, 32]"),
                    HasSubstr("model.layers.0.self_attn.q_norm.weight: not a tensor of this qwen2 model"),
                    HasSubstr("model.norm.weight: has type I32; accepted: F64, F32, F16, BF16")));
}

TEST(OpenModel, PassesOverATiedHeadAndOldRotaryTables) {
  const CopiedModel model("gguf_qwen2");
  model.rewrite_weights([](auto& tensors) {
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"];
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = tensors["model.norm.weight"];
  });
  EXPECT_EQ(model.refusal(), "");
}

TEST(OpenModel, RefusesATiedHeadWithValuesOfItsOwnWhichTransformersWouldNotTie) {
  const CopiedModel model("gguf_qwen2");
  model.rewrite_weights([](auto& tensors) {
    TensorView head = tensors["model.embed_tokens.weight"];
    static std::vector<std::byte> changed;
    changed.assign(head.bytes.begin(), head.bytes.end());
    changed.back() ^= std::byte{1};
    head.bytes = changed;
    tensors["lm_head.weight"] = head;
  });
  EXPECT_THAT(model.refusal(),
              HasSubstr("model.safetensors: lm_head.weight: differs from model.embed_tokens.weight, which config.json ties it to"
                        " (tie_word_embeddings: true); with false both are used, as transformers does with such a file"));
  model.replace_in("config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false");
  EXPECT_EQ(model.refusal(), "");
}

TEST(OpenModel, ComparesATiedHeadOfAnotherTypeByItsValues) {
  const CopiedModel model("gguf_qwen2");
  const at::Tensor wide = open_model(model_data / "gguf_qwen2").load("model.embed_tokens.weight", at::kDouble);
  const auto bytes = std::as_bytes(std::span(wide.const_data_ptr<double>(), static_cast<size_t>(wide.numel())));
  model.rewrite_weights([&](auto& tensors) { tensors["lm_head.weight"] = {DataType::f64, wide.sizes().vec(), bytes}; });
  EXPECT_EQ(model.refusal(), "");
  model.rewrite_weights([&](auto& tensors) { tensors["lm_head.weight"] = {DataType::f64, {wide.size(1), wide.size(0)}, bytes}; });
  EXPECT_THAT(model.refusal(), HasSubstr("lm_head.weight: differs from model.embed_tokens.weight"));
}

TEST(OpenModel, NamesFileAndTensorOfATruncatedShard) {
  const CopiedModel model("llama3");
  const fs::path shard = model.path() / "model-00002-of-00002.safetensors";
  fs::resize_file(shard, fs::file_size(shard) - 100);
  EXPECT_THAT(model.refusal(),
              AllOf(HasSubstr(shard.string()), HasSubstr("tensor '"), HasSubstr("truncated")));
  fs::remove(shard);
  EXPECT_THAT(model.refusal(), HasSubstr(shard.string()));
}

TEST(OpenModel, ReportsGgufTensorsThatDisagreeWithTheMetadata) {
  const CopiedModel model("gguf_llama");
  const auto refusal = [&] { return user_error_of([&] { open_model(model.path() / "model.gguf"); }); };
  model.replace_in("model.gguf", "blk.1.attn_norm.weight", "blk.1.attn_morn.weight");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr("model.gguf: blk.1.attn_norm.weight: missing"),
                    HasSubstr("model.gguf: blk.1.attn_morn.weight: not a tensor of this llama model")));
}

TEST(OpenModel, RefusesGgufTypesThatItCannotDequantiseNamingAllTensors) {
  const CopiedModel model("gguf_llama");
  // The type number follows name (u64 length, text), dimension count and two extents; I32 has the size of
  // F32.
  std::string bytes = read_file(model.path() / "model.gguf");
  for (const std::string name : {"blk.0.attn_v.weight", "blk.1.ffn_up.weight"}) {
    bytes[bytes.find(name) + name.size() + 4 + 16] = 26;
  }
  write_file_atomically(model.path() / "model.gguf", bytes);
  EXPECT_THAT(
      user_error_of([&] { open_model(model.path() / "model.gguf"); }),
      AllOf(HasSubstr("blk.0.attn_v.weight: has type I32; accepted: F32, F16, BF16, Q8_0, Q4_0, Q4_1"),
            HasSubstr("blk.1.ffn_up.weight: has type I32")));
}

TEST(OpenModel, SaysWhatItAcceptsWhereThereIsNoModel) {
  const TemporaryFolder folder;
  EXPECT_THAT(user_error_of([&] { open_model(folder.path() / "none"); }),
              AllOf(HasSubstr("no such file"), HasSubstr(".gguf")));
  EXPECT_THAT(user_error_of([&] { open_model(folder.path()); }), HasSubstr("has no config.json"));
  EXPECT_THAT(user_error_of([&] { open_model(folder.write("a.txt", "hello, world")); }),
              HasSubstr("not a GGUF file"));
}

ModelConfig small_config() {
  return open_model(model_data / "qwen2").config;
}

TEST(RandomModel, DependsOnSeedAndNameAlone) {
  const ModelFiles a = random_model(small_config(), 1), b = random_model(small_config(), 1),
                   c = random_model(small_config(), 2);
  for (const ModelTensor& tensor : model_tensors(a.config)) {
    const at::Tensor values = a.load(tensor.name, at::kFloat);
    EXPECT_EQ(values.sizes().vec(), tensor.shape);
    EXPECT_TRUE(at::equal(values, b.load(tensor.name, at::kFloat)));
    EXPECT_FALSE(at::equal(values, c.load(tensor.name, at::kFloat)));
    EXPECT_TRUE(at::equal(values.to(at::kBFloat16), a.load(tensor.name, at::kBFloat16)));
  }
  EXPECT_FALSE(at::equal(a.load("model.layers.0.mlp.up_proj.weight", at::kFloat),
                         a.load("model.layers.1.mlp.up_proj.weight", at::kFloat)));
}

TEST(RandomModel, HasTheStatedSpread) {
  const ModelFiles model = random_model(model_preset("smollm2-135m"), 3);
  const at::Tensor matrix = model.load("model.layers.0.mlp.down_proj.weight", at::kDouble);
  EXPECT_NEAR(matrix.std().item<double>() * std::sqrt(1536.0), 1, 0.01);
  EXPECT_NEAR(matrix.mean().item<double>(), 0, 1e-4);
  const at::Tensor norm = model.load("model.norm.weight", at::kDouble);
  EXPECT_GE(norm.min().item<double>(), 0.9);
  EXPECT_LE(norm.max().item<double>(), 1.1);
}

TEST(ModelFilesIdentity, IsEqualWhereTheVerySameFilesAreRead) {
  const CopiedModel model("llama2"), copy("llama2");
  const TemporaryFolder elsewhere;
  fs::create_directory_symlink(model.path(), elsewhere.path() / "link");
  const auto identity = [](const fs::path& path) { return model_files_identity(open_model(path)); };
  const std::string before = identity(model.path());
  EXPECT_NE(before, "");
  EXPECT_EQ(identity(elsewhere.path() / "link"), before);
  EXPECT_NE(identity(copy.path()), before);
  model.rewrite_weights([](auto&) {});
  EXPECT_NE(identity(model.path()), before);
  EXPECT_EQ(model_files_identity(random_model(model_preset("smollm2-135m"), 1)), "") << "there are no files";
}

TEST(SmolLm2, LoadsWithTheValuesOfThePythonPackage) {
  if (testing::smollm2_file().empty()) GTEST_SKIP() << testing::no_smollm2;
  const ModelFiles model = open_model(testing::smollm2_file());
  ModelConfig expected = model_preset("smollm2-135m");
  expected.bos_token_id = 1;
  expected.eos_token_ids = {2};
  expected.dtype = "";
  expected.rms_norm_epsilon = model.config.rms_norm_epsilon;  // an f32 in the file
  EXPECT_EQ(model.config, expected);
  EXPECT_EQ(model.tokenizer.gguf->pre, "smollm");
  EXPECT_EQ(model.tokenizer.eos_token, "<|im_end|>");
  const struct {
    const char* name;
    int64_t row, column;
    float value;
  } values[] = {
      {"model.embed_tokens.weight", 1000, 17, 0.213882446f},
      {"model.layers.3.self_attn.q_proj.weight", 70, 5, 0.0936584473f},
      {"model.layers.7.self_attn.k_proj.weight", 161, 300, -0.0415649414f},
      {"model.layers.29.mlp.down_proj.weight", 575, 1535, 0.056640625f},
      {"model.norm.weight", 0, 100, 2.09375f},
  };
  for (const auto& each : values) {
    const at::Tensor tensor = model.load(each.name, at::kFloat);
    const int64_t columns = tensor.size(-1);
    EXPECT_EQ(tensor.const_data_ptr<float>()[each.row * columns + each.column], each.value) << each.name;
  }
  for (const ModelTensor& tensor : model_tensors(model.config)) {
    EXPECT_TRUE(model.load(tensor.name, at::kBFloat16).defined()) << tensor.name;
  }
}

}  // namespace
}  // namespace cotune
