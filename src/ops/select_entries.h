/// Which entries of a weight diff pruning trains: those of largest importance.
#pragma once

#include <cstdint>

#include "ops/sparse_delta.h"

namespace cotune {

/// The `keep` entries of largest magnitude of `importance` [in, out], 1 to in·out; ties to the lower (row, column). On the host it takes
/// nothing of the weight's size for that.
SparseDelta select_entries(const at::Tensor& importance, int64_t keep);
/// The same by tensor operations that stay on the device of `importance`: what select_entries does on a GPU.
SparseDelta select_entries_by_sorting(const at::Tensor& importance, int64_t keep);

}  // namespace cotune
