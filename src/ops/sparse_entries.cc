#include "ops/sparse_entries.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "ops/backend.h"
#include "ops/row_batches.h"

namespace cotune {
namespace {

constexpr int64_t matrix_rows = 64;                 // that an entry takes at once: always as many, for equal sums
constexpr int64_t block_values = int64_t{1} << 18;  // gathered at once: entries · rows

/// Both ends of every entry of the groups, below one another.
struct Entries {
  std::vector<int64_t> begins;  // of each group, and the end of the last
  at::Tensor rows, columns;     // int64 [entries]
};

template <typename Group>
Entries entries_of(const std::vector<Group>& groups) {
  Entries entries{{0}, {}, {}};
  std::vector<at::Tensor> rows, columns;
  for (const Group& group : groups) {
    const SparseDelta& delta = *group.delta;
    rows.push_back(delta.row_indices.to(at::kLong));
    columns.push_back(
        at::repeat_interleave(delta.column_offsets.diff(), std::optional<int64_t>(delta.entry_count())));
    entries.begins.push_back(entries.begins.back() + delta.entry_count());
  }
  entries.rows = at::cat(rows);
  entries.columns = at::cat(columns);
  return entries;
}

/// The groups' rows in matrices; groups of the same rows (q, k, v of one job) share theirs.
struct SharedBatches {
  template <typename Group>
  SharedBatches(const std::vector<Group>& groups, at::Device device)
      : rows(distinct_rows(groups)), batches(rows, matrix_rows, device) {
    for (const Group& group : groups) {
      const auto place = std::find(rows.begin(), rows.end(), group.rows) - rows.begin();
      matrices_of_group.push_back(batches.matrices_of(static_cast<size_t>(place)));
    }
  }

  std::vector<RowRange> rows;  ///< distinct, ascending
  RowBatches batches;
  std::vector<RowRange> matrices_of_group;

 private:
  template <typename Group>
  static std::vector<RowRange> distinct_rows(const std::vector<Group>& groups) {
    std::vector<RowRange> rows;
    for (const Group& group : groups) rows.push_back(group.rows);
    std::sort(rows.begin(), rows.end(),
              [](const RowRange& a, const RowRange& b) { return a.begin < b.begin; });
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    return rows;
  }
};

/// What one block takes: pairs of an entry and a matrix of its group's rows.
struct PairBlock {
  at::Tensor entries, matrices;  // int64 [pairs]
};

/// Every entry of every group with every matrix of its group, in blocks.
void for_each_block(const Entries& entries, const SharedBatches& shared, at::Device device,
                    const std::function<void(const PairBlock&)>& body) {
  const int64_t most = std::max<int64_t>(1, block_values / std::max<int64_t>(1, shared.batches.height()));
  std::vector<int64_t> matrices, shifts, counts;
  int64_t taken = 0;
  const auto flush = [&] {
    if (taken == 0) return;
    const auto tensor = [&](const std::vector<int64_t>& values) {
      return at::tensor(values, at::kLong).to(device);
    };
    const at::Tensor segment = at::repeat_interleave(tensor(counts), std::optional<int64_t>(taken));
    const at::Tensor numbers = at::arange(taken, segment.options());
    body({numbers + tensor(shifts).index_select(0, segment), tensor(matrices).index_select(0, segment)});
    matrices.clear();
    shifts.clear();
    counts.clear();
    taken = 0;
  };
  for (size_t group = 0; group + 1 < entries.begins.size(); ++group) {
    const RowRange of_group = shared.matrices_of_group[group];
    for (int64_t matrix = of_group.begin; matrix < of_group.end; ++matrix) {
      for (int64_t entry = entries.begins[group]; entry < entries.begins[group + 1];) {
        const int64_t count = std::min(most - taken, entries.begins[group + 1] - entry);
        matrices.push_back(matrix);
        shifts.push_back(entry - taken);
        counts.push_back(count);
        entry += count;
        taken += count;
        if (taken == most) flush();
      }
    }
  }
  flush();
}

/// [matrices, height, columns] → a line of `height` values per matrix and column, [matrices · columns,
/// height].
at::Tensor lines_of(const at::Tensor& matrices) {
  return matrices.transpose(1, 2).reshape({matrices.size(0) * matrices.size(2), matrices.size(1)});
}

/// One value per entry: that of its group.
at::Tensor per_entry(const std::vector<int64_t>& of_groups, const Entries& entries, at::Device device) {
  std::vector<int64_t> counts;
  for (size_t i = 0; i + 1 < entries.begins.size(); ++i)
    counts.push_back(entries.begins[i + 1] - entries.begins[i]);
  const at::Tensor group = at::repeat_interleave(at::tensor(counts, at::kLong).to(device),
                                                 std::optional<int64_t>(entries.begins.back()));
  return at::tensor(of_groups, at::kLong).to(device).index_select(0, group);
}

}  // namespace

void add_in_entries(const std::vector<SparseDeltaGroup>& groups, const at::Tensor& from, at::Tensor& to,
                    EntryEnds ends) {
  const at::Device device = from.device();
  const at::ScalarType wide = accumulation_dtype(from.scalar_type());
  const SharedBatches shared(groups, device);
  std::vector<int64_t> from_columns, to_columns;
  std::vector<at::Tensor> values;
  for (const SparseDeltaGroup& group : groups) {
    from_columns.push_back(group.from_column);
    to_columns.push_back(group.to_column);
    values.push_back(group.values);
  }
  const Entries entries = entries_of(groups);
  const bool by_rows = ends == EntryEnds::rows_to_columns;
  const at::Tensor read =
      (by_rows ? entries.rows : entries.columns) + per_entry(from_columns, entries, device);
  const at::Tensor added =
      (by_rows ? entries.columns : entries.rows) + per_entry(to_columns, entries, device);
  const at::Tensor all_values = at::cat(values);
  const int64_t count = shared.batches.count(), height = shared.batches.height();
  const at::Tensor lines = lines_of(shared.batches.gather(from).to(wide));
  const at::Tensor sums = at::zeros({count * to.size(1), height}, lines.options());
  for_each_block(entries, shared, device, [&](const PairBlock& block) {
    const at::Tensor read_lines = block.matrices * from.size(1) + read.index_select(0, block.entries);
    const at::Tensor added_lines = block.matrices * to.size(1) + added.index_select(0, block.entries);
    const at::Tensor factors = all_values.index_select(0, block.entries).unsqueeze(1);
    sums.index_add_(0, added_lines, lines.index_select(0, read_lines).mul_(factors));
  });
  const at::Tensor rows = shared.batches.scatter(sums.view({count, to.size(1), height}).transpose(1, 2));
  const SelectedRows selected(shared.rows, device);
  selected.put(to, selected.select(to).to(wide) + rows);
}

void add_value_gradients_in_entries(const std::vector<SparseDeltaGradient>& groups, const at::Tensor& x,
                                    const at::Tensor& dy) {
  const at::Device device = x.device();
  const at::ScalarType wide = accumulation_dtype(x.scalar_type());
  const SharedBatches shared(groups, device);
  std::vector<int64_t> dy_columns;
  for (const SparseDeltaGradient& group : groups) dy_columns.push_back(group.dy_column);
  const Entries entries = entries_of(groups);
  const at::Tensor columns = entries.columns + per_entry(dy_columns, entries, device);
  const at::Tensor x_lines = lines_of(shared.batches.gather(x).to(wide));
  const at::Tensor dy_lines = lines_of(shared.batches.gather_with_zeros(dy).to(wide));
  const at::Tensor sums = at::zeros({entries.begins.back()}, x_lines.options());
  for_each_block(entries, shared, device, [&](const PairBlock& block) {
    const at::Tensor read_x = block.matrices * x.size(1) + entries.rows.index_select(0, block.entries);
    const at::Tensor read_dy = block.matrices * dy.size(1) + columns.index_select(0, block.entries);
    const at::Tensor products = x_lines.index_select(0, read_x).mul_(dy_lines.index_select(0, read_dy));
    sums.index_add_(0, block.entries, products.sum(1));
  });
  std::vector<at::Tensor> gradients, parts;
  for (size_t i = 0; i < groups.size(); ++i) {
    gradients.push_back(groups[i].gradient);
    parts.push_back(sums.narrow(0, entries.begins[i], entries.begins[i + 1] - entries.begins[i]));
  }
  add_in_order(gradients, parts);
}

}  // namespace cotune
