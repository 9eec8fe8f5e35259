/// Rows of many jobs as one batch of equal matrices, so that ATen serves all of them by one call. A matrix
/// holds rows of one group only, and what fills it up is the group's own or zero: a NaN of one job meets no
/// number of another's, not even by a product with zero. Internal to ops/.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "kernels/matrix.h"

namespace cotune {

using kernels::RowRange;

class RowBatches {
 public:
  /// The height, of 16 to 256, at which these groups' matrices and the factor of `rank` rows that each brings
  /// have fewest rows.
  static int64_t smallest_height(const std::vector<RowRange>& groups, int64_t rank);

  /// Every group's rows in matrices of `height` rows.
  RowBatches(const std::vector<RowRange>& groups, int64_t height, at::Device device);

  int64_t count() const { return static_cast<int64_t>(group_of_.size()); }
  int64_t height() const { return height_; }
  bool one_each() const;  ///< every group has one matrix
  /// Of each matrix, int64 [count].
  const at::Tensor& groups() const { return groups_; }
  /// The matrices of a group: consecutive.
  RowRange matrices_of(size_t group) const { return matrices_[group]; }

  /// rows [n, columns] → [count, height, columns]. A group's last row stands in for those that it lacks.
  at::Tensor gather(const at::Tensor& rows) const;
  /// The same with zeros in their place.
  at::Tensor gather_with_zeros(const at::Tensor& rows) const;
  /// [count, height, columns] → the groups' rows one after another [Σ rows, columns].
  at::Tensor scatter(const at::Tensor& matrices) const;

 private:
  int64_t height_ = 0;
  std::vector<int64_t> group_of_;   // each matrix
  std::vector<RowRange> matrices_;  // of each group
  at::Tensor groups_, sources_, places_, missing_;
};

/// What ranks are padded to, with zeros: ATen computes narrower matrices in another order of summation. So padded, and
/// 16 rows high at least, a row of a matrix has the same bits whatever the height, the rank and the other matrices are.
int64_t batch_rank(int64_t rank);

/// a·b of every matrix, [count, h, k]·[count, k, n]. On the CPU a lone matrix goes as two halves: ATen has another
/// order of summation for it.
at::Tensor batched_product(const at::Tensor& a, const at::Tensor& b);

/// Σ of the rows of every matrix, [count, h, n] → [count, n]: the same bits whatever number of zeros follows.
at::Tensor row_sums(const at::Tensor& matrices);

/// Tensors [rows_i, ≥ columns_i] below one another, [Σ rows_i, columns] of `dtype`: the first columns_i of
/// each, zeros beside them.
at::Tensor joined_rows(const std::vector<at::Tensor>& parts, const std::vector<int64_t>& columns,
                       int64_t all_columns, at::ScalarType dtype);

/// Rows of a tensor that groups name, ascending and disjoint: a slice where they follow one another.
class SelectedRows {
 public:
  SelectedRows(const std::vector<RowRange>& groups, at::Device device);
  at::Tensor select(const at::Tensor& tensor) const;
  void put(at::Tensor tensor, const at::Tensor& rows) const;
  void add(at::Tensor tensor, const at::Tensor& rows) const;

 private:
  RowRange range_;
  at::Tensor index_;  // undefined: the range
};

/// targets[i] += parts[i] for every i; parts of one target in the order given, whatever the number of
/// targets.
void add_in_order(const std::vector<at::Tensor>& targets, const std::vector<at::Tensor>& parts);

}  // namespace cotune
