#include "model/config/families.h"

#include <algorithm>

#include "base/error.h"

namespace cotune {

ModelFamily llama_family();
ModelFamily mistral_family();
ModelFamily qwen2_family();
ModelFamily gpt_family();
ModelFamily opt_family();

namespace {

const std::vector<ModelFamily>& families() {
  static const std::vector<ModelFamily> all = {
      llama_family(),
      mistral_family(),
      qwen2_family(),
      gpt_family(),
      opt_family(),
  };
  return all;
}

std::string with_layer(std::string_view pattern, int64_t layer) {
  const size_t place = pattern.find("{}");
  if (place == std::string_view::npos) return std::string(pattern);
  return fmt::format("{}{}{}", pattern.substr(0, place), layer, pattern.substr(place + 2));
}

bool applies(TensorRule::When when, const ModelConfig& config) {
  switch (when) {
    case TensorRule::When::always:
      return true;
    case TensorRule::When::qkv_bias:
      return config.qkv_bias;
    case TensorRule::When::untied:
      return !config.tied_embeddings;
  }
  return false;
}

}  // namespace

int64_t extent_of(Extent extent, const ModelConfig& config) {
  switch (extent) {
    case Extent::hidden:
      return config.hidden_size;
    case Extent::query:
      return config.query_size();
    case Extent::key_value:
      return config.key_value_size();
    case Extent::intermediate:
      return config.intermediate_size;
    case Extent::vocabulary:
      return config.vocabulary_size;
    case Extent::positions:
      return config.learned_positions;
  }
  COTUNE_CHECK(false, "extent {}", static_cast<int>(extent));
}

const ModelFamily& model_family(std::string_view name) {
  for (const ModelFamily& family : families()) {
    if (family.name == name) return family;
  }
  throw_user_error("model family '{}' is not known; accepted: {}", name,
                   fmt::join(model_family_names(), ", "));
}

const ModelFamily* family_of_gguf(std::string_view architecture) {
  for (const ModelFamily& family : families()) {
    if (!architecture.empty() && family.gguf_architecture == architecture) return &family;
  }
  return nullptr;
}

std::vector<std::string> model_family_names() {
  std::vector<std::string> names;
  for (const ModelFamily& family : families()) {
    if (!family.shape_only) names.emplace_back(family.name);
  }
  return names;
}

void require_engine_support(const ModelConfig& config) {
  if (!model_family(config.family).shape_only) return;
  throw_user_error("models of family '{}' can be planned but not trained; trained are: {}", config.family,
                   fmt::join(model_family_names(), ", "));
}

std::vector<std::string> gguf_architecture_names() {
  std::vector<std::string> names;
  for (const ModelFamily& family : families()) {
    if (!family.gguf_architecture.empty()) names.emplace_back(family.gguf_architecture);
  }
  return names;
}

std::vector<TensorRule> llama_shaped_tensors(GgufRows query_key_rows) {
  using enum Extent;
  using When = TensorRule::When;
  return {
      {"model.embed_tokens.weight", "token_embd.weight", {vocabulary, hidden}},
      {"model.layers.{}.input_layernorm.weight", "blk.{}.attn_norm.weight", {hidden}},
      {"model.layers.{}.self_attn.q_proj.weight",
       "blk.{}.attn_q.weight",
       {query, hidden},
       When::always,
       query_key_rows},
      {"model.layers.{}.self_attn.q_proj.bias",
       "blk.{}.attn_q.bias",
       {query},
       When::qkv_bias,
       query_key_rows},
      {"model.layers.{}.self_attn.k_proj.weight",
       "blk.{}.attn_k.weight",
       {key_value, hidden},
       When::always,
       query_key_rows},
      {"model.layers.{}.self_attn.k_proj.bias",
       "blk.{}.attn_k.bias",
       {key_value},
       When::qkv_bias,
       query_key_rows},
      {"model.layers.{}.self_attn.v_proj.weight", "blk.{}.attn_v.weight", {key_value, hidden}},
      {"model.layers.{}.self_attn.v_proj.bias", "blk.{}.attn_v.bias", {key_value}, When::qkv_bias},
      {"model.layers.{}.self_attn.o_proj.weight", "blk.{}.attn_output.weight", {hidden, query}},
      {"model.layers.{}.post_attention_layernorm.weight", "blk.{}.ffn_norm.weight", {hidden}},
      {"model.layers.{}.mlp.gate_proj.weight", "blk.{}.ffn_gate.weight", {intermediate, hidden}},
      {"model.layers.{}.mlp.up_proj.weight", "blk.{}.ffn_up.weight", {intermediate, hidden}},
      {"model.layers.{}.mlp.down_proj.weight", "blk.{}.ffn_down.weight", {hidden, intermediate}},
      {"model.norm.weight", "output_norm.weight", {hidden}},
      {"lm_head.weight", "output.weight", {vocabulary, hidden}, When::untied},
  };
}

std::vector<ModelTensor> model_tensors(const ModelConfig& config) {
  std::vector<ModelTensor> tensors;
  const auto add = [&](const TensorRule& rule, int64_t layer) {
    if (!applies(rule.when, config)) return;
    ModelTensor tensor{with_layer(rule.name, layer), with_layer(rule.gguf_name, layer), {}, rule.gguf_rows};
    for (const Extent extent : rule.shape) tensor.shape.push_back(extent_of(extent, config));
    tensors.push_back(std::move(tensor));
  };
  const std::vector<TensorRule>& rules = model_family(config.family).tensors;
  const auto per_layer = [](const TensorRule& rule) {
    return rule.name.find("{}") != std::string_view::npos;
  };
  for (auto rule = rules.begin(); rule != rules.end();) {
    if (!per_layer(*rule)) {
      add(*rule++, 0);
      continue;
    }
    const auto end = std::find_if_not(rule, rules.end(), per_layer);
    for (int64_t layer = 0; layer < config.layer_count; ++layer) {
      for (auto each = rule; each != end; ++each) add(*each, layer);
    }
    rule = end;
  }
  return tensors;
}

int64_t parameter_count(const ModelConfig& config) {
  int64_t count = 0;
  for (const ModelTensor& tensor : model_tensors(config)) {
    int64_t values = 1;
    for (const int64_t extent : tensor.shape) values *= extent;
    count += values;
  }
  return count;
}

}  // namespace cotune
