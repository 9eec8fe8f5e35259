#include "engine/backbone.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "model/config/rope.h"
#include "ops/backend.h"
#include "ops/memory.h"

namespace cotune {

std::shared_ptr<const Backbone> Backbone::load(const ModelFiles& files, at::ScalarType compute, at::Device device,
                                               BackboneUse use) {
  const MemoryScope scope(MemoryKind::weights);
  auto backbone = std::make_shared<Backbone>();
  const ModelConfig& config = files.config;
  backbone->config_ = config;
  backbone->compute_ = compute;
  backbone->device_ = device;
  const auto weight = [&](const std::string& name) { return files.load(name, compute).to(device); };
  const auto norm = [&](const std::string& name) {
    return files.load(name, accumulation_dtype(compute)).to(device).contiguous();
  };
  const auto product = [&](const std::string& prefix, const std::vector<const char*>& modules, bool biases) {
    std::vector<at::Tensor> weights, bias_values;
    for (const char* module : modules) {
      weights.push_back(weight(prefix + module + ".weight"));
      if (biases) bias_values.push_back(weight(prefix + module + ".bias"));
    }
    return make_frozen_product(weights, bias_values, use.training);
  };
  if (!config.tied_embeddings) backbone->embedding_ = weight("model.embed_tokens.weight");
  for (int64_t index = 0; index < config.layer_count; ++index) {
    const std::string prefix = fmt::format("model.layers.{}.", index);
    BackboneLayer layer;
    layer.attention_norm = norm(prefix + "input_layernorm.weight");
    layer.mlp_norm = norm(prefix + "post_attention_layernorm.weight");
    layer.qkv = product(prefix + "self_attn.", {"q_proj", "k_proj", "v_proj"}, config.qkv_bias);
    layer.o = product(prefix + "self_attn.", {"o_proj"}, false);
    layer.gate_up = product(prefix + "mlp.", {"gate_proj", "up_proj"}, false);
    layer.down = product(prefix + "mlp.", {"down_proj"}, false);
    backbone->layers_.push_back(std::move(layer));
    files.weights->drop_pages();
  }
  backbone->final_norm_ = norm("model.norm.weight");
  backbone->head_ = make_frozen_product(
      {weight(config.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight")}, {}, use.training);
  files.weights->drop_pages();
  const int64_t positions = use.positions > 0 ? std::min(use.positions, config.context_length) : config.context_length;
  backbone->rotary_ = rotary_table(rope_inverse_frequencies(config), positions, compute, device);
  return backbone;
}

at::Tensor Backbone::embed(const at::Tensor& tokens) const {
  return embedding_.defined() ? embedding_.index_select(0, tokens) : head_->weight_rows(tokens);
}

AttentionShape Backbone::attention_shape() const {
  return {config_.head_count, config_.kv_head_count, config_.head_dim};
}

int64_t Backbone::weight_bytes() const {
  int64_t bytes = static_cast<int64_t>(rotary_.cosine.nbytes() + rotary_.sine.nbytes() + final_norm_.nbytes()) +
                  head_->bytes();
  if (embedding_.defined()) bytes += static_cast<int64_t>(embedding_.nbytes());
  for (const BackboneLayer& layer : layers_) {
    bytes += layer.qkv->bytes() + layer.o->bytes() + layer.gate_up->bytes() + layer.down->bytes() +
             static_cast<int64_t>(layer.attention_norm.nbytes() + layer.mlp_norm.nbytes());
  }
  return bytes;
}

}  // namespace cotune
