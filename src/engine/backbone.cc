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
  auto backbone = std::make_shared<Backbone>();
  backbone->config_ = files.config;
  backbone->compute_ = compute;
  backbone->device_ = device;
  backbone->use_for(files, use);
  return backbone;
}

void Backbone::use_for(const ModelFiles& files, const BackboneUse& use) {
  const MemoryScope scope(MemoryKind::weights);
  const bool is_same_part = shard_.index == use.shard.index && shard_.count == use.shard.count;
  const bool may_keep = is_same_part && sharded_ == nullptr && use.holder.is_alone();
  shard_ = use.shard;
  shard_config_ = sharded_config(config_, use.shard.count);
  const std::vector<StageShape> stages = use.stages.empty() ? std::vector{whole_model(config_)} : use.stages;
  const auto needs = [&](auto needed) { return std::ranges::any_of(stages, needed); };
  const auto needs_layer = [&](int64_t index) {
    return needs([&](const StageShape& stage) { return stage.first_layer <= index && index < stage.last_layer; });
  };
  const bool needs_head = needs([](const StageShape& stage) { return stage.has_head; });
  const bool needs_embedding = needs([](const StageShape& stage) { return stage.has_embedding; }) && !(config_.tied_embeddings && needs_head);
  layers_.resize(static_cast<size_t>(config_.layer_count));
  for (int64_t index = 0; index < config_.layer_count; ++index) {
    if (!may_keep || !needs_layer(index)) layers_[static_cast<size_t>(index)] = {};
  }
  if (!may_keep || !needs_head) {
    head_.reset();
    final_norm_ = at::Tensor();
  }
  if (!may_keep || !needs_embedding) embedding_ = at::Tensor();
  sharded_.reset();
  if (!use.holder.is_alone()) sharded_ = std::make_shared<ShardedWeights>(use.holder);
  // What is cut is copied: a view would keep all of it.
  const auto part = [&](const std::string& name, int64_t dimension, const FeatureRange& range) {
    const at::Tensor whole = files.load(name, compute_);
    if (use.shard.is_whole()) return whole.to(device_);
    return whole.narrow(dimension, range.begin, range.count).clone(at::MemoryFormat::Contiguous).to(device_);
  };
  const auto norm = [&](const std::string& name) {
    return files.load(name, accumulation_dtype(compute_)).to(device_).contiguous();
  };
  const auto product = [&](int64_t layer, const std::vector<Projection>& projections, bool biases) {
    std::vector<at::Tensor> weights, bias_values;
    for (const Projection projection : projections) {
      const std::string name = module_name(layer, projection);
      const FeatureRange outputs = shard_outputs(config_, projection, use.shard);
      weights.push_back(divides_outputs(projection) ? part(name + ".weight", 0, outputs)
                                                    : part(name + ".weight", 1, shard_inputs(config_, projection, use.shard)));
      if (biases) bias_values.push_back(part(name + ".bias", 0, outputs));
    }
    const std::shared_ptr<const FrozenProduct> whole = make_frozen_product(weights, bias_values, use.training);
    return sharded_ != nullptr ? sharded_->keep(*whole, use.training) : whole;
  };
  if (needs_head && head_ == nullptr) {
    final_norm_ = norm("model.norm.weight");
    head_ = make_frozen_product({part(config_.tied_embeddings ? "model.embed_tokens.weight" : "lm_head.weight", 0, vocabulary())}, {}, use.training);
    files.weights->drop_pages();
  }
  if (needs_embedding && !embedding_.defined()) {
    const at::Tensor embedding = part("model.embed_tokens.weight", 0, vocabulary());
    if (sharded_ != nullptr) {
      sharded_->keep_rows(embedding);
    } else {
      embedding_ = embedding;
    }
  }
  for (int64_t index = 0; index < config_.layer_count; ++index) {
    BackboneLayer& layer = layers_[static_cast<size_t>(index)];
    if (!needs_layer(index) || layer.down != nullptr) continue;
    const std::string prefix = fmt::format("model.layers.{}.", index);
    layer.attention_norm = norm(prefix + "input_layernorm.weight");
    layer.mlp_norm = norm(prefix + "post_attention_layernorm.weight");
    layer.qkv = product(index, {Projection::q, Projection::k, Projection::v}, config_.qkv_bias);
    layer.o = product(index, {Projection::o}, false);
    layer.gate_up = product(index, {Projection::gate, Projection::up}, false);
    layer.down = product(index, {Projection::down}, false);
    files.weights->drop_pages();
  }
  files.weights->drop_pages();
  if (sharded_ != nullptr) release_unused_memory();  // of weights as they were before they were cut
  const int64_t rows = use.positions > 0 ? std::min(use.positions, config_.context_length) : config_.context_length;
  if (!rotary_.cosine.defined() || positions() < rows) rotary_ = rotary_table(rope_inverse_frequencies(config_), rows, compute_, device_);
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
