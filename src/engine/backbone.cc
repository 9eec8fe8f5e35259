#include "engine/backbone.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>

#include "model/config/rope.h"
#include "ops/backend.h"
#include "ops/memory.h"

namespace cotune {

std::shared_ptr<Backbone> Backbone::load(const ModelFiles& files, at::ScalarType compute, at::Device device,
                                         BackboneUse use) {
  const MemoryScope scope(MemoryKind::weights);
  auto backbone = std::make_shared<Backbone>();
  const ModelConfig& config = files.config;
  backbone->config_ = config;
  backbone->shard_ = use.shard;
  backbone->shard_config_ = sharded_config(config, use.shard.count);
  backbone->compute_ = compute;
  backbone->device_ = device;
  if (!use.holder.is_alone()) backbone->sharded_ = std::make_shared<ShardedWeights>(use.holder);
  // What is cut is copied: a view would keep all of it.
  const auto part = [&](const std::string& name, int64_t dimension, const FeatureRange& range) {
    const at::Tensor whole = files.load(name, compute);
    if (use.shard.is_whole()) return whole.to(device);
    return whole.narrow(dimension, range.begin, range.count).clone(at::MemoryFormat::Contiguous).to(device);
  };
  const auto norm = [&](const std::string& name) {
    return files.load(name, accumulation_dtype(compute)).to(device).contiguous();
  };
  const auto product = [&](int64_t layer, const std::vector<Projection>& projections, bool biases) {
    std::vector<at::Tensor> weights, bias_values;
    for (const Projection projection : projections) {
      const std::string name = module_name(layer, projection);
      const FeatureRange outputs = shard_outputs(config, projection, use.shard);
      weights.push_back(divides_outputs(projection) ? part(name + ".weight", 0, outputs)
                                                    : part(name + ".weight", 1, shard_inputs(config, projection, use.shard)));
      if (biases) bias_values.push_back(part(name + ".bias", 0, outputs));
    }
    const std::shared_ptr<const FrozenProduct> whole = make_frozen_product(weights, bias_values, use.training);
    return backbone->sharded_ != nullptr ? backbone->sharded_->keep(*whole, use.training) : whole;
  };
  const FeatureRange vocabulary = backbone->vocabulary();
  const std::vector<StageShape> stages = use.stages.empty() ? std::vector{whole_model(config)} : use.stages;
  const auto needs = [&](auto needed) { return std::any_of(stages.begin(), stages.end(), needed); };
  const bool needs_embedding = needs([](const StageShape& stage) { return stage.has_embedding; });
  const bool needs_head = needs([](const StageShape& stage) { return stage.has_head; });
  const bool head_embeds = config.tied_embeddings && needs_head;
  if (needs_head) {
    backbone->final_norm_ = norm("model.norm.weight");
    backbone->head_ = make_frozen_product(
        {part(config.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight", 0, vocabulary)}, {}, use.training);
    files.weights->drop_pages();
  }
  if (needs_embedding && !head_embeds) {
    const at::Tensor embedding = part("model.embed_tokens.weight", 0, vocabulary);
    if (backbone->sharded_ != nullptr) {
      backbone->sharded_->keep_rows(embedding);
    } else {
      backbone->embedding_ = embedding;
    }
  }
  for (int64_t index = 0; index < config.layer_count; ++index) {
    if (!needs([&](const StageShape& stage) { return stage.first_layer <= index && index < stage.last_layer; })) {
      backbone->layers_.emplace_back();
      continue;
    }
    const std::string prefix = fmt::format("model.layers.{}.", index);
    BackboneLayer layer;
    layer.attention_norm = norm(prefix + "input_layernorm.weight");
    layer.mlp_norm = norm(prefix + "post_attention_layernorm.weight");
    layer.qkv = product(index, {Projection::q, Projection::k, Projection::v}, config.qkv_bias);
    layer.o = product(index, {Projection::o}, false);
    layer.gate_up = product(index, {Projection::gate, Projection::up}, false);
    layer.down = product(index, {Projection::down}, false);
    backbone->layers_.push_back(std::move(layer));
    files.weights->drop_pages();
  }
  files.weights->drop_pages();
  if (backbone->sharded_ != nullptr) release_unused_memory();  // of weights as they were before they were cut
  const int64_t positions = use.positions > 0 ? std::min(use.positions, config.context_length) : config.context_length;
  backbone->rotary_ = rotary_table(rope_inverse_frequencies(config), positions, compute, device);
  return backbone;
}

std::shared_ptr<Backbone> Backbone::emulated(const ModelConfig& config, at::ScalarType compute, TensorShard shard,
                                             std::shared_ptr<const EmulatedDevice> device) {
  auto backbone = std::make_shared<Backbone>();
  backbone->config_ = config;
  backbone->shard_ = shard;
  backbone->shard_config_ = sharded_config(config, shard.count);
  backbone->compute_ = compute;
  backbone->device_ = at::kMeta;
  backbone->emulated_ = std::move(device);
  return backbone;
}

void Backbone::allow_rows(int64_t positions) {
  if (emulated_ != nullptr) return;
  positions = std::min(positions, config_.context_length);
  if (positions <= this->positions()) return;
  const MemoryScope scope(MemoryKind::weights);
  rotary_ = rotary_table(rope_inverse_frequencies(config_), positions, compute_, device_);
}

at::Tensor Backbone::embed(const at::Tensor& tokens) const {
  const auto rows = [&](const at::Tensor& indices) {
    if (sharded_ != nullptr && sharded_->has_rows()) return sharded_->rows(indices);
    return embedding_.defined() ? embedding_.index_select(0, indices) : head_->weight_rows(indices);
  };
  if (shard_.is_whole()) return rows(tokens);
  const FeatureRange own = vocabulary();
  const at::Tensor indices = tokens - own.begin;
  const at::Tensor elsewhere = indices.lt(0).logical_or_(indices.ge(own.count));
  return rows(indices.masked_fill(elsewhere, 0)).masked_fill_(elsewhere.unsqueeze(1), 0);
}

AttentionShape Backbone::attention_shape() const {
  return {shard_config_.head_count, shard_config_.kv_head_count, shard_config_.head_dim};
}

int64_t Backbone::weight_bytes() const {
  if (emulated_ != nullptr) return 0;
  int64_t bytes = static_cast<int64_t>(rotary_.cosine.nbytes() + rotary_.sine.nbytes());
  if (head_ != nullptr) bytes += static_cast<int64_t>(final_norm_.nbytes()) + head_->bytes();
  if (embedding_.defined()) bytes += static_cast<int64_t>(embedding_.nbytes());
  if (sharded_ != nullptr) bytes += sharded_->row_bytes() + sharded_->buffer_bytes();
  for (const BackboneLayer& layer : layers_) {
    if (layer.qkv == nullptr) continue;
    bytes += layer.qkv->bytes() + layer.o->bytes() + layer.gate_up->bytes() + layer.down->bytes() +
             static_cast<int64_t>(layer.attention_norm.nbytes() + layer.mlp_norm.nbytes());
  }
  return bytes;
}

int64_t Backbone::whole_weight_bytes() const {
  if (sharded_ == nullptr) return weight_bytes();
  return weight_bytes() - sharded_->buffer_bytes() - sharded_->bytes() + sharded_->whole_bytes();
}

}  // namespace cotune
