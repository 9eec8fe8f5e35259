/// What an adapter adds to frozen weights, as numbers of these weights: for merging.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "adapter/adapter.h"

namespace cotune {

/// W + scale·(A·B)ᵀ of LoRA, with rsLoRA's scale where it is used, and W + Δᵀ of diff pruning.
class WeightChanges {
 public:
  /// None: every weight as it is.
  WeightChanges() = default;
  /// The adapter, on the CPU or brought to it, must outlive this and not change. Throws UserError for a method that is no change of
  /// weights: a bottleneck adapter is a function of its own behind a projection.
  explicit WeightChanges(const Adapter& adapter);

  /// name: `model.layers.3.self_attn.q_proj.weight`.
  bool changes(const std::string& name) const { return modules_.contains(name); }
  size_t count() const { return modules_.size(); }

  /// What is added to rows [begin, begin + count) of the weight [out, in]; f64.
  at::Tensor rows(const std::string& name, int64_t begin, int64_t count) const;

 private:
  struct Change {
    double scale = 1;
    at::Tensor a, b;                            ///< LoRA: [r, in], [r, out]
    at::Tensor entry_rows, offsets, values;     ///< diff pruning: by output feature, which input features and what
    int64_t in_features = 0;
  };
  std::map<std::string, Change> modules_;
};

}  // namespace cotune
