#include "ops/low_rank_batches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>

#include "ops/backend.h"
#include "ops/call_counts.h"
#include "ops/low_rank_forms.h"
#include "ops/row_batches.h"

namespace cotune {
namespace {

constexpr int64_t most_gradient_bytes = int64_t{32} << 20;

template <typename Group>
std::vector<RowRange> rows_of(const std::vector<Group>& groups) {
  std::vector<RowRange> rows;
  for (const Group& group : groups) rows.push_back(group.rows);
  return rows;
}

/// The rows of tensors that stand below one another.
template <typename Sizes>
std::vector<RowRange> places_of(size_t count, Sizes size_of) {
  std::vector<RowRange> places;
  int64_t begin = 0;
  for (size_t i = 0; i < count; ++i) {
    places.push_back({begin, begin + size_of(i)});
    begin = places.back().end;
  }
  return places;
}

template <typename Group>
int64_t largest_rank(const std::vector<Group>& groups) {
  int64_t rank = 0;
  for (const Group& group : groups) rank = std::max(rank, group.factor->rank());
  return batch_rank(rank);
}

template <typename Group>
RowBatches batches_of(const std::vector<Group>& groups, const std::vector<RowRange>& rows,
                      at::Device device) {
  return {rows, RowBatches::smallest_height(rows, largest_rank(groups)), device};
}

/// Every group's factor, for every matrix of the batches: [count, largest padded rank, n], zero beyond a rank.
template <typename Group>
at::Tensor factors_of(const std::vector<Group>& groups, const RowBatches& batches) {
  const int64_t rank = largest_rank(groups);
  const at::Tensor& first = dense_form(*groups.front().factor);
  const auto size = static_cast<int64_t>(groups.size());
  const at::Tensor factors = at::zeros({size, rank, first.size(1)}, first.options());
  std::vector<at::Tensor> places, sources;
  for (int64_t i = 0; i < size; ++i) {
    sources.push_back(dense_form(*groups[static_cast<size_t>(i)].factor));
    places.push_back(factors[i].narrow(0, 0, sources.back().size(0)));
  }
  at::_foreach_copy_(places, sources);
  return batches.one_each() ? factors : factors.index_select(0, batches.groups());
}

/// s·F of every group, below one another [Σ rows, n].
at::Tensor expanded(const std::vector<ExpandGroup>& groups) {
  std::vector<at::Tensor> parts;
  std::vector<int64_t> ranks;
  for (const ExpandGroup& group : groups) {
    parts.push_back(group.s);
    ranks.push_back(group.factor->rank());
  }
  const auto places = places_of(groups.size(), [&](size_t i) { return groups[i].rows.count(); });
  const RowBatches batches = batches_of(groups, places, parts.front().device());
  const at::Tensor factors = factors_of(groups, batches);
  const at::Tensor s = joined_rows(parts, ranks, factors.size(1), parts.front().scalar_type());
  return batches.scatter(batched_product(batches.gather(s), factors));
}

/// One row of `biases` for every row of the groups: [Σ rows, n].
at::Tensor biases_of(const std::vector<ExpandGroup>& groups) {
  if (groups.size() == 1) return groups.front().bias;
  std::vector<at::Tensor> biases;
  std::vector<int64_t> counts;
  int64_t rows = 0;
  for (const ExpandGroup& group : groups) {
    biases.push_back(group.bias);
    counts.push_back(group.rows.count());
    rows += counts.back();
  }
  const at::Tensor stacked = at::stack(biases);
  const at::Tensor repeats = at::tensor(counts, at::kLong).to(stacked.device(), at::kLong, /*non_blocking=*/true);
  return stacked.index_select(0, at::repeat_interleave(repeats, std::optional<int64_t>(rows)));
}

/// Groups whose operands and products take no more than most_gradient_bytes, or one.
size_t groups_of_a_call(std::span<const GradientGroup> groups) {
  int64_t rank = 0, longest = 0;
  size_t count = 0;
  for (; count < groups.size(); ++count) {
    const at::Tensor& gradient = groups[count].gradient;
    rank = std::max(rank, gradient.size(0));
    longest = std::max(longest, groups[count].rows.count());
    const int64_t values = rank * gradient.size(1) + longest * (rank + gradient.size(1));
    if (count > 0 && static_cast<int64_t>(count + 1) * values * gradient.element_size() > most_gradient_bytes)
      break;
  }
  return count;
}

}  // namespace

void shrink_in_batches(const at::Tensor& x, const std::vector<ShrinkGroup>& groups) {
  const RowBatches batches = batches_of(groups, rows_of(groups), x.device());
  at::Tensor s = batched_product(batches.gather(x), factors_of(groups, batches).transpose(1, 2));
  std::vector<double> scales;
  for (const ShrinkGroup& group : groups) scales.push_back(group.scale);
  const at::Tensor wide_scales = at::tensor(scales).to(x.device(), accumulation_dtype(x.scalar_type()), /*non_blocking=*/true);
  s.mul_(wide_scales.index_select(0, batches.groups()).view({-1, 1, 1}));
  const at::Tensor rows = batches.scatter(s);
  std::vector<at::Tensor> targets, sources;
  int64_t begin = 0;
  for (const ShrinkGroup& group : groups) {
    const int64_t rank = group.factor->rank();
    targets.push_back(group.s.narrow(1, 0, rank));
    sources.push_back(rows.narrow(0, begin, group.rows.count()).narrow(1, 0, rank));
    begin += group.rows.count();
  }
  at::_foreach_copy_(targets, sources);
}

std::vector<std::vector<ExpandGroup>> sites_of(const std::vector<ExpandGroup>& groups) {
  std::vector<std::vector<ExpandGroup>> sites;
  for (const ExpandGroup& group : groups) {
    const bool next = sites.empty() || sites.back().back().rows.end > group.rows.begin ||
                      sites.back().back().column_begin != group.column_begin ||
                      sites.back().back().factor->width() != group.factor->width();
    if (next) sites.emplace_back();
    sites.back().push_back(group);
  }
  return sites;
}

void expand_in_batches(at::Tensor& y, const std::vector<ExpandGroup>& groups, const ExpandOptions& options) {
  const ExpandGroup& first = groups.front();
  at::Tensor columns = y.narrow(1, first.column_begin, first.factor->width());
  const SelectedRows rows(rows_of(groups), y.device());
  const at::Tensor added = expanded(groups);
  if (!first.dropout && !first.bias.defined() && !options.residual.defined()) {
    rows.add(columns, added);
    return;
  }
  const at::ScalarType wide = accumulation_dtype(y.scalar_type());
  at::Tensor sum = rows.select(columns).to(wide);
  if (options.residual.defined()) sum = rows.select(options.residual).to(wide) + sum;
  if (first.dropout) {
    std::vector<DropoutGroup> sites;
    for (const ExpandGroup& group : groups) sites.push_back({*group.dropout, group.rows});
    sum = sum + added.to(wide) * dropout_masks(sites, options.dropout, added.size(1), wide);
  } else {
    sum = sum + added.to(wide);
  }
  if (first.bias.defined()) sum = sum + biases_of(groups);
  rows.put(columns, sum);
}

void accumulate_in_batches(const at::Tensor& right, const std::vector<GradientGroup>& all) {
  for (size_t begin = 0; begin < all.size();) {
    const size_t count = groups_of_a_call(std::span(all).subspan(begin));
    const std::vector<GradientGroup> groups(all.begin() + static_cast<std::ptrdiff_t>(begin),
                                            all.begin() + static_cast<std::ptrdiff_t>(begin + count));
    begin += count;
    count_adapter_call();
    const at::ScalarType wide = groups.front().gradient.scalar_type();
    int64_t rank = 0, longest = 0;
    std::vector<at::Tensor> lefts;
    std::vector<int64_t> ranks;
    for (const GradientGroup& group : groups) {
      ranks.push_back(group.gradient.size(0));
      rank = std::max(rank, batch_rank(ranks.back()));
      longest = std::max(longest, group.rows.count());
      lefts.push_back(group.left);
    }
    const auto places = places_of(count, [&](size_t i) { return groups[i].rows.count(); });
    if (longest == 0) continue;
    const RowBatches left_batches(places, longest, right.device());
    const at::Tensor left = left_batches.gather_with_zeros(joined_rows(lefts, ranks, rank, wide));
    const at::Tensor rows = RowBatches(rows_of(groups), longest, right.device()).gather(right).to(wide);
    const at::Tensor products = at::bmm(left.transpose(1, 2), rows);
    std::vector<at::Tensor> gradients, parts;
    for (size_t i = 0; i < count; ++i) {
      const RowRange matrix = left_batches.matrices_of(i);  // none for a group without rows
      if (matrix.count() == 0) continue;
      gradients.push_back(groups[i].gradient);
      parts.push_back(products[matrix.begin].narrow(0, 0, ranks[i]));
    }
    add_in_order(gradients, parts);
  }
}

void sum_in_batches(const std::vector<RowSum>& sums) {
  const at::ScalarType wide = sums.front().gradient.scalar_type();
  int64_t columns = 0, longest = 0;
  std::vector<at::Tensor> rights, gradients, parts;
  std::vector<int64_t> widths;
  for (const RowSum& sum : sums) {
    rights.push_back(sum.right);
    widths.push_back(sum.right.size(1));
    columns = std::max(columns, widths.back());
    longest = std::max(longest, sum.right.size(0));
  }
  if (longest == 0) return;
  const auto places = places_of(sums.size(), [&](size_t i) { return sums[i].right.size(0); });
  const RowBatches batches(places, longest, rights.front().device());
  const at::Tensor totals = row_sums(batches.gather_with_zeros(joined_rows(rights, widths, columns, wide)));
  for (size_t i = 0; i < sums.size(); ++i) {
    const RowRange matrix = batches.matrices_of(i);
    if (matrix.count() == 0) continue;
    gradients.push_back(sums[i].gradient);
    parts.push_back(totals[matrix.begin].narrow(0, 0, widths[i]));
  }
  add_in_order(gradients, parts);
}

}  // namespace cotune
