/// The operators of sparse_delta.h by ATen: entry by entry of all jobs together, in blocks of bounded memory
/// whose number grows with entries · rows and not with the jobs. An entry of one job meets rows of that job
/// only. Internal to ops/.
#pragma once

#include <vector>

#include "ops/sparse_delta.h"

namespace cotune {

/// Which end of an entry (row, column) of Δ is read and which is added to.
enum class EntryEnds { rows_to_columns, columns_to_rows };

/// to[rows] += from[rows]·Δ, or ·Δᵀ.
void add_in_entries(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& from, at::Tensor& to,
                    EntryEnds ends);
void add_value_gradients_in_entries(const std::vector<SparseDeltaGradient>& groups, const at::Tensor& x,
                                    const at::Tensor& dy);

}  // namespace cotune
