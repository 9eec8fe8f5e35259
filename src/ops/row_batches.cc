#include "ops/row_batches.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "ops/aten_products.h"

namespace cotune {
namespace {

constexpr int64_t product_block =
    32;  // of oneDNN's products in bf16, which read rows to the end of a block (row_products.h)

constexpr int64_t fewest_columns = 16;  // fewer are multiplied in another order (on AMD processors; on Intel fewer than 8)

at::Tensor on_device(const std::vector<int64_t>& values, at::Device device) {
  return at::tensor(values, at::kLong).to(device, at::kLong, /*non_blocking=*/true);
}

}  // namespace

int64_t RowBatches::smallest_height(const std::vector<RowRange>& groups, int64_t rank) {
  int64_t best = 0, least = 0;
  for (const int64_t height : {16, 32, 64, 128, 256}) {
    int64_t rows = 0;
    for (const RowRange& group : groups) rows += (group.count() + height - 1) / height * (height + rank);
    if (best == 0 || rows < least) {
      best = height;
      least = rows;
    }
  }
  return best;
}

RowBatches::RowBatches(const std::vector<RowRange>& groups, int64_t height, at::Device device) : height_(height) {
  std::vector<int64_t> sources, places, missing;
  for (size_t group = 0; group < groups.size(); ++group) {
    const RowRange& rows = groups[group];
    const auto first = static_cast<int64_t>(group_of_.size());
    for (int64_t begin = rows.begin; begin < rows.end; begin += height_) {
      for (int64_t i = 0; i < height_; ++i) {
        const bool has = begin + i < rows.end;
        (has ? places : missing).push_back(static_cast<int64_t>(sources.size()));
        sources.push_back(has ? begin + i : rows.end - 1);
      }
      group_of_.push_back(static_cast<int64_t>(group));
    }
    matrices_.push_back({first, static_cast<int64_t>(group_of_.size())});
  }
  sources_ = on_device(sources, device);
  groups_ = on_device(group_of_, device);
  if (!missing.empty()) {
    places_ = on_device(places, device);
    missing_ = on_device(missing, device);
  }
}

bool RowBatches::one_each() const {
  return std::all_of(matrices_.begin(), matrices_.end(),
                     [](const RowRange& matrices) { return matrices.count() == 1; });
}

at::Tensor RowBatches::gather(const at::Tensor& rows) const {
  return rows.index_select(0, sources_).view({count(), height_, rows.size(1)});
}

at::Tensor RowBatches::gather_with_zeros(const at::Tensor& rows) const {
  at::Tensor gathered = rows.index_select(0, sources_);
  if (missing_.defined()) gathered.index_fill_(0, missing_, 0);
  return gathered.view({count(), height_, rows.size(1)});
}

at::Tensor RowBatches::scatter(const at::Tensor& matrices) const {
  const at::Tensor rows = matrices.reshape({count() * height_, matrices.size(2)});
  return places_.defined() ? rows.index_select(0, places_) : rows;
}

int64_t batch_rank(int64_t rank) { return (rank + fewest_columns - 1) / fewest_columns * fewest_columns; }

at::Tensor batched_product(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_cpu() && a.size(0) == 1) {
    const int64_t half = a.size(1) / 2;
    const at::Tensor twice = b.expand({2, b.size(1), b.size(2)});
    if (half >= 16) return batched_product(a.reshape({2, half, a.size(2)}), twice).reshape({1, 2 * half, b.size(2)});
    return batched_product(a.expand({2, a.size(1), a.size(2)}), twice).narrow(0, 0, 1);
  }
  const int64_t over = a.size(2) % product_block;
  if (!a.is_cpu() || a.scalar_type() != at::kBFloat16 || over == 0) return aten_batched_product(a, b);
  const int64_t lacking = product_block - over;
  return aten_batched_product(at::constant_pad_nd(a, {0, lacking}), at::constant_pad_nd(b, {0, 0, 0, lacking}));
}

at::Tensor row_sums(const at::Tensor& matrices) {
  const at::Tensor ones = at::ones({matrices.size(0), fewest_columns, matrices.size(1)}, matrices.options());
  return at::bmm(ones, matrices).select(1, 0);
}

at::Tensor joined_rows(const std::vector<at::Tensor>& parts, const std::vector<int64_t>& columns,
                       int64_t all_columns, at::ScalarType dtype) {
  int64_t rows = 0;
  for (const at::Tensor& part : parts) rows += part.size(0);
  const at::Tensor joined = at::zeros({rows, all_columns}, parts.front().options().dtype(dtype));
  std::vector<at::Tensor> sources, places;
  int64_t begin = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    sources.push_back(parts[i].narrow(1, 0, columns[i]));
    places.push_back(joined.narrow(0, begin, parts[i].size(0)).narrow(1, 0, columns[i]));
    begin += parts[i].size(0);
  }
  at::_foreach_copy_(places, sources);
  return joined;
}

SelectedRows::SelectedRows(const std::vector<RowRange>& groups, at::Device device)
    : range_{groups.front().begin, groups.back().end} {
  std::vector<int64_t> rows;
  for (const RowRange& group : groups) {
    for (int64_t row = group.begin; row < group.end; ++row) rows.push_back(row);
  }
  if (static_cast<int64_t>(rows.size()) != range_.count()) index_ = on_device(rows, device);
}

at::Tensor SelectedRows::select(const at::Tensor& tensor) const {
  return index_.defined() ? tensor.index_select(0, index_) : tensor.narrow(0, range_.begin, range_.count());
}

void SelectedRows::put(at::Tensor tensor, const at::Tensor& rows) const {
  if (index_.defined()) {
    tensor.index_copy_(0, index_, rows.to(tensor.scalar_type()));
  } else {
    tensor.narrow(0, range_.begin, range_.count()).copy_(rows);
  }
}

void SelectedRows::add(at::Tensor tensor, const at::Tensor& rows) const {
  if (index_.defined()) {
    tensor.index_add_(0, index_, rows.to(tensor.scalar_type()));
  } else {
    tensor.narrow(0, range_.begin, range_.count()).add_(rows);
  }
}

void add_in_order(const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& parts) {
  std::map<const void*, size_t> turns;  // of each target so far
  std::vector<std::vector<at::Tensor>> turn_targets, turn_parts;
  for (size_t i = 0; i < targets.size(); ++i) {
    const size_t turn = turns[targets[i].unsafeGetTensorImpl()->storage().unsafeGetStorageImpl()]++;
    if (turn == turn_targets.size()) {
      turn_targets.emplace_back();
      turn_parts.emplace_back();
    }
    turn_targets[turn].push_back(targets[i]);
    turn_parts[turn].push_back(parts[i]);
  }
  for (size_t turn = 0; turn < turn_targets.size(); ++turn)
    at::_foreach_add_(turn_targets[turn], turn_parts[turn]);
}

}  // namespace cotune
