/// The model, every adapter method and the optimizers once more, written plainly: one row at a time, dense f64 tensors,
/// gradients by torch's autograd. Shares no operator, kernel or adapter code with the engine; what is held against it.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <vector>

#include "adapter/adapter.h"
#include "engine/job_round.h"
#include "model/weights/model_files.h"

namespace cotune::testing {

/// An adapter's trainable tensors as leaves of autograd, with copies of its values and kept entries at the time.
class PlainAdapter {
 public:
  explicit PlainAdapter(const Adapter& adapter);

  /// What the adapter makes of a projection: y [tokens, out] from x [tokens, in] and the frozen product y0.
  at::Tensor apply(int64_t layer, Projection projection, const at::Tensor& x, const at::Tensor& y0,
                   const BatchRow& row, uint64_t dropout_key, bool training) const;

  std::vector<at::Tensor>& leaves() { return leaves_; }  ///< in the order of the adapter's parameters
  /// torch.optim.AdamW or SGD after torch.nn.utils.clip_grad_norm_ (or no clipping); gradients are cleared.
  void step(const OptimizerSettings& settings);

 private:
  struct Site {
    AdaptedModule module;
    size_t first_leaf = 0;
    at::Tensor flat_places;  ///< diff pruning: row · out + column of every kept entry
  };
  AdapterSpec spec_;
  std::vector<Site> sites_;
  std::vector<at::Tensor> leaves_, first_moments_, second_moments_;
  std::vector<double> rate_ratios_;
};

class PlainModel {
 public:
  explicit PlainModel(const ModelFiles& files);

  /// [tokens, vocabulary].
  at::Tensor logits(const BatchRow& row, const PlainAdapter* adapter, uint64_t dropout_key, bool training) const;
  /// Mean of −log p over the batch's learned tokens; 0 without any.
  at::Tensor loss(const Batch& batch, const PlainAdapter* adapter, uint64_t dropout_key, bool training = true) const;
  /// The loss, and its gradient in every leaf (zero where nothing flows).
  double backward(const Batch& batch, PlainAdapter& adapter, uint64_t dropout_key) const;

 private:
  const at::Tensor& weight(const std::string& name) const { return weights_.at(name); }

  ModelConfig config_;
  std::map<std::string, at::Tensor> weights_;
  std::vector<double> frequencies_;
};

}  // namespace cotune::testing
