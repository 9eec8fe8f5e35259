#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "engine/emulated_device.h"
#include "engine/sharded_weights.h"
#include "model/config/model_config.h"
#include "model/config/tensor_shard.h"
#include "model/weights/model_files.h"
#include "ops/attention.h"
#include "ops/frozen_product.h"
#include "schedule/operators.h"

namespace cotune {

/// The frozen weights of one layer.
struct BackboneLayer {
  at::Tensor attention_norm, mlp_norm;  ///< [hidden] accumulation dtype
  std::shared_ptr<const FrozenProduct> qkv, o, gate_up, down;  ///< q|k|v and gate|up side by side
};

/// What the model is loaded for: what nobody needs takes no memory and no time.
struct BackboneUse {
  bool training = true;   ///< false: forward only, for generation; the products keep no backward form
  int64_t positions = 0;  ///< the longest row, answers included; 0: the model's whole context
  TensorShard shard;      ///< which part of every layer, of the embedding and of the head
  std::vector<StageShape> stages;  ///< of this process, where others compute the rest; empty: the whole model
  WeightHolder holder;             ///< among the processes that spread these weights over them; alone: they are whole here
};

/// The frozen base model, or the part of it that one rank of a tensor-parallel group has: immutable but for the length of rows it
/// is ready for and the use that it is put to, loaded once per process and device, shared by all jobs. The ranks of a group together hold each weight
/// once, but for norms, rotary tables and kv heads that several of them need.
class Backbone {
 public:
  /// Reads and packs the weights, layer by layer; the file's pages are dropped as it goes. compute: bfloat16, float32 or
  /// float64 (tests). device: where they go.
  static std::shared_ptr<Backbone> load(const ModelFiles& files, at::ScalarType compute, at::Device device,
                                        BackboneUse use = {});
  /// From now on for this use, of the same model: whole weights that both uses ask for in the same part stay where they are, others are let go of
  /// before what is missing is read. Rows may stay as long as they are, and use.training as it was. Not while anything computes. If it throws, it
  /// holds less than either use asks for, and must be called again.
  void use_for(const ModelFiles& files, const BackboneUse& use);

  /// Shapes without weights, on the meta device: for interpreters that let operators take the device's time and compute nothing.
  static std::shared_ptr<Backbone> emulated(const ModelConfig& config, at::ScalarType compute, TensorShard shard,
                                            std::shared_ptr<const EmulatedDevice> device);
  /// nullptr: there are weights to compute with.
  const EmulatedDevice* emulated_device() const { return emulated_.get(); }

  /// Of the whole model.
  const ModelConfig& config() const { return config_; }
  const TensorShard& shard() const { return shard_; }
  /// Of the layers as they are here (sharded_config).
  const ModelConfig& shard_config() const { return shard_config_; }
  at::ScalarType compute() const { return compute_; }
  at::Device device() const { return device_; }
  // Of a backbone of some stages only what they use may be asked for.
  /// Embeddings [n, hidden] of tokens [n], compute dtype. A tied embedding is read from the head, where that is there. Zeros for
  /// tokens that another rank of the group has.
  at::Tensor embed(const at::Tensor& tokens) const;
  const BackboneLayer& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  const at::Tensor& final_norm() const { return final_norm_; }
  /// Its outputs are the tokens of vocabulary().
  const FrozenProduct& head() const { return *head_; }
  FeatureRange vocabulary() const { return shard_vocabulary(config_, shard_); }
  const RotaryTable& rotary() const { return rotary_; }
  int64_t positions() const { return rotary_.cosine.size(0); }  ///< rows can have so many tokens
  /// Makes rows of so many tokens possible, up to the model's context: for jobs that come later. Not while anything computes. What
  /// was computed with shorter rows keeps its bits. Throws MemoryLimitExceeded, and is then as before.
  void allow_rows(int64_t positions);
  AttentionShape attention_shape() const;
  /// Of everything that it holds; with gathered weights, at most.
  int64_t weight_bytes() const;
  /// The same, were nothing spread over other processes.
  int64_t whole_weight_bytes() const;
  /// Through which layers' products and the embedding are slices, to be joined before anything computes; nullptr: they are whole.
  /// Norms, biases, the head, and an embedding that is read from it, are whole in any case: the head is used where a step takes most
  /// memory, and a slice beside the whole that is gathered then would take more.
  ShardedWeights* sharded_weights() const { return sharded_.get(); }
  /// ShardedWeights::forms; "" where all is whole.
  std::string weight_forms() const { return sharded_ != nullptr ? sharded_->forms() : ""; }

 private:
  ModelConfig config_, shard_config_;
  TensorShard shard_;
  at::ScalarType compute_ = at::kFloat;
  at::Device device_ = at::kCPU;
  at::Tensor embedding_;  ///< [vocabulary here, hidden]; undefined where the head or sharded_ has it, or nobody asks for it
  at::Tensor final_norm_;
  std::vector<BackboneLayer> layers_;
  std::shared_ptr<const FrozenProduct> head_;
  RotaryTable rotary_;
  std::shared_ptr<const EmulatedDevice> emulated_;
  std::shared_ptr<ShardedWeights> sharded_;
};

}  // namespace cotune
