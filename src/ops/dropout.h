#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/matrix.h"

namespace cotune {

using kernels::RowRange;

/// A dropout mask is a pure function of coordinates (kernels/dropout.h gives the formula): of the site's key (job seed, job
/// step, module), each row's example key and token position, and the feature. Nothing is stored.
struct DropoutKey {
  uint64_t key = 0;
  double probability = 0;  ///< of dropping, [0, 1)
  int64_t first_feature = 0;  ///< of the whole row, where x has a part of its columns. The same at all sites of a call
};

/// The rows of a microbatch, as masks know them.
struct DropoutRows {
  at::Tensor example_keys;  ///< int64 [tokens]
  at::Tensor positions;     ///< int32 [tokens]
};

/// One site's part of a grouped dropout: rows of x. Sites may share rows.
struct DropoutGroup {
  DropoutKey site;
  RowRange rows;
};

/// mask ⊙ x / (1 − p) of every group's rows, one after another in the order of the groups: [Σ rows, features]. Rows of x
/// contiguous in their columns.
at::Tensor apply_dropout(const std::vector<DropoutGroup>& groups, const DropoutRows& rows, const at::Tensor& x);

/// The masks as a tensor [Σ rows, features], 0 or 1/(1 − p), in `dtype`: by tensor operations on the device of `rows`.
at::Tensor dropout_masks(const std::vector<DropoutGroup>& groups, const DropoutRows& rows, int64_t features,
                         at::ScalarType dtype);

}  // namespace cotune
