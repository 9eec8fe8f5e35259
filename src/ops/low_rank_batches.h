/// The operators of low_rank.h by ATen: all groups of a site by one batched product (row_batches.h). Internal
/// to ops/.
#pragma once

#include <vector>

#include "ops/low_rank.h"

namespace cotune {

/// Fills the groups' s, which are there already, up to the rank.
void shrink_in_batches(const at::Tensor& x, const std::vector<ShrinkGroup>& groups);

/// The groups in runs of disjoint, ascending rows and equal columns: those of one site each, where the groups
/// come site by site.
std::vector<std::vector<ExpandGroup>> sites_of(const std::vector<ExpandGroup>& groups);
/// add_expansions of one such run.
void expand_in_batches(at::Tensor& y, const std::vector<ExpandGroup>& groups, const ExpandOptions& options);

/// accumulate_gradients; counts its calls: one, or as many as keep what a call takes within 32 MiB.
void accumulate_in_batches(const at::Tensor& right, const std::vector<GradientGroup>& groups);
void sum_in_batches(const std::vector<RowSum>& sums);

}  // namespace cotune
