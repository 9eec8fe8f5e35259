#include <algorithm>
#include <cmath>

#include "base/diagnostics.h"
#include "base/error.h"
#include "formats/dequantize.h"
#include "model/config/families.h"
#include "model/config/model_config.h"
#include "model/config/size_limits.h"

namespace cotune {
namespace {

/// The keys of one architecture (`llama.block_count`), with every mistake collected.
class GgufKeys {
 public:
  GgufKeys(const GgufFile& file, std::string architecture, Diagnostics& mistakes)
      : file_(file), architecture_(std::move(architecture)), mistakes_(mistakes) {}

  int64_t count(const char* key, int64_t maximum, std::optional<int64_t> fallback = std::nullopt) {
    const auto value = file_.integer(full(key));
    if (!value && fallback) return *fallback;
    if (value && *value >= 1 && *value <= maximum) return *value;
    refuse(key, value ? fmt::format("{}", *value) : "nothing",
           fmt::format("a whole number from 1 to {}", maximum));
    return fallback.value_or(1);
  }

  double positive_number(const char* key, std::optional<double> fallback = std::nullopt) {
    const auto value = file_.number(full(key));
    if (!value && fallback) return *fallback;
    if (value && *value > 0 && std::isfinite(*value)) return *value;
    refuse(key, value ? fmt::format("{}", *value) : "nothing", "a number above 0");
    return fallback.value_or(1);
  }

  bool has(const char* key) const { return file_.number(full(key)).has_value(); }
  /// 1 where it is absent or 0.
  double scale(const char* key) { return file_.number(full(key)) == 0.0 ? 1 : positive_number(key, 1); }
  std::string text(const char* key, std::string fallback) { return file_.text(full(key)).value_or(fallback); }

  void refuse(const char* key, const std::string& found, const std::string& accepted) {
    mistakes_.add(file_.path().string(), 0, full(key),
                  fmt::format("found {}; accepted: {}", found, accepted));
  }

 private:
  std::string full(const char* key) const { return architecture_ + "." + key; }

  const GgufFile& file_;
  std::string architecture_;
  Diagnostics& mistakes_;
};

void read_rope(const GgufFile& file, GgufKeys& keys, ModelConfig& config) {
  config.rope_theta = keys.positive_number("rope.freq_base", 10000);
  RopeScaling& scaling = config.rope_scaling;
  // As in llama.cpp: linear where no type is given, by a factor that files before November 2023 have under another key.
  const std::string type = keys.text("rope.scaling.type", "linear");
  if (type == "linear") {
    const double factor = keys.has("rope.scaling.factor") ? keys.scale("rope.scaling.factor") : keys.scale("rope.scale_linear");
    if (factor != 1) scaling = {.kind = RopeScaling::Kind::linear, .factor = factor};
  } else if (type != "none") {
    keys.refuse("rope.scaling.type", type, "none, linear");
  }
  const GgufTensor* divisors = file.find("rope_freqs.weight");
  if (divisors == nullptr) return;
  std::vector<float> values(static_cast<size_t>(config.head_dim / 2));
  if (scaling.kind != RopeScaling::Kind::none || divisors->type != GgufType::F32 ||
      divisors->bytes.size() != values.size() * sizeof(float)) {
    throw_user_error(
        "{}: tensor 'rope_freqs.weight': accepted: {} values of type F32, without a linear scaling",
        file.path().string(), values.size());
  }
  dequantize(divisors->type, divisors->bytes, values);
  scaling.kind = RopeScaling::Kind::table;
  scaling.divisors.assign(values.begin(), values.end());
  if (!std::all_of(values.begin(), values.end(),
                   [](float value) { return value > 0 && std::isfinite(value); })) {
    throw_user_error("{}: tensor 'rope_freqs.weight': accepted: numbers above 0", file.path().string());
  }
}

/// Rows of the embedding; metadata need not give the vocabulary's size.
int64_t embedding_rows(const GgufFile& file) {
  const GgufTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2 || embedding->shape[0] > maximum_vocabulary) {
    throw_user_error("{}: tensor 'token_embd.weight': missing, or not a matrix", file.path().string());
  }
  return embedding->shape[0];
}

}  // namespace

ModelConfig model_config_from_gguf(const GgufFile& file) {
  const std::string architecture = file.text("general.architecture").value_or("");
  const ModelFamily* family = family_of_gguf(architecture);
  if (family == nullptr) {
    throw_user_error("{}: general.architecture: found '{}'; accepted: {}", file.path().string(), architecture,
                     fmt::join(gguf_architecture_names(), ", "));
  }
  Diagnostics mistakes;
  GgufKeys keys(file, architecture, mistakes);
  ModelConfig config;
  config.family = family->name;
  config.layer_count = keys.count("block_count", maximum_layers);
  config.hidden_size = keys.count("embedding_length", maximum_width);
  config.intermediate_size = keys.count("feed_forward_length", maximum_width);
  config.head_count = keys.count("attention.head_count", maximum_heads);
  config.kv_head_count = keys.count("attention.head_count_kv", maximum_heads, config.head_count);
  config.context_length = keys.count("context_length", maximum_context);
  config.rms_norm_epsilon = keys.positive_number("attention.layer_norm_rms_epsilon");
  config.vocabulary_size = embedding_rows(file);
  config.tied_embeddings = file.find("output.weight") == nullptr;
  config.head_dim = keys.count("attention.key_length", maximum_head_dim,
                               std::max<int64_t>(config.hidden_size / config.head_count, 1));
  if (config.head_dim % 2 != 0)
    keys.refuse("attention.key_length", fmt::format("{}", config.head_dim), "an even number");
  if (keys.count("attention.value_length", maximum_head_dim, config.head_dim) != config.head_dim) {
    keys.refuse("attention.value_length", "another size",
                fmt::format("that of the keys, {}", config.head_dim));
  }
  if (keys.count("rope.dimension_count", maximum_head_dim, config.head_dim) != config.head_dim) {
    keys.refuse("rope.dimension_count", "a part of each head",
                fmt::format("the whole head, {}", config.head_dim));
  }
  if (config.head_count % config.kv_head_count != 0) {
    keys.refuse("attention.head_count_kv", fmt::format("{}", config.kv_head_count),
                fmt::format("a divisor of attention.head_count ({})", config.head_count));
  }
  if (const int64_t experts = file.integer(architecture + ".expert_count").value_or(0); experts != 0) {
    keys.refuse("expert_count", fmt::format("{}", experts), "0 (mixtures of experts are not supported)");
  }
  mistakes.throw_if_any();
  read_rope(file, keys, config);
  mistakes.throw_if_any();
  family->set_gguf_specifics(config);

  const auto id = [&](const char* key) -> std::optional<int32_t> {
    const auto value = file.integer(key);
    if (!value || *value < 0 || *value > INT32_MAX) return std::nullopt;
    return static_cast<int32_t>(*value);
  };
  config.bos_token_id = id("tokenizer.ggml.bos_token_id");
  if (const auto eos = id("tokenizer.ggml.eos_token_id")) config.eos_token_ids.push_back(*eos);
  return config;
}

}  // namespace cotune
