/// The low-rank side of a product: factors in the form the kernels want, grouped shrinks and grouped gradients.
/// One call serves all jobs at a projection (BatchLoRA, mLoRA §3.3.1; horizontal fusion, MuxTune §3.4.3): of a kernel of ours,
/// or of ATen's batched operators on rows in equal batches (row_batches.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/matrix.h"
#include "ops/dropout.h"

namespace cotune {

using kernels::RowRange;

/// A small trainable matrix F [rank, n] (its f32 or f64 master lives with the job) in the compute dtype, for two
/// products:  shrink s = x·Fᵀ  (x [rows, n] → s [rows, padded_rank])  and  expand y += s·F  (s → [rows, n]).
/// Call refresh() after every change of the master.
class LowRankFactor {
 public:
  virtual ~LowRankFactor() = default;
  int64_t rank() const { return rank_; }
  /// Columns of s: multiples of 32 (of 8 on a GPU), filled with zeros, where our kernels run; the rank elsewhere.
  int64_t padded_rank() const { return padded_rank_; }
  int64_t width() const { return width_; }
  virtual void refresh(const at::Tensor& master) = 0;

 protected:
  LowRankFactor(int64_t rank, int64_t padded_rank, int64_t width)
      : rank_(rank), padded_rank_(padded_rank), width_(width) {}

 private:
  int64_t rank_, padded_rank_, width_;
};

/// Where our kernels run, the packed form that a product reads. made_by_use: by each grouped call, for as long as it runs:
/// in training every form is read once or twice between two changes of the master, by hundreds of rows. kept: packed once,
/// for both products; for generation, where factors do not change and a pass has few rows.
enum class FactorForm { made_by_use, kept };

std::unique_ptr<LowRankFactor> make_low_rank_factor(const at::Tensor& master, at::ScalarType compute,
                                                    FactorForm form = FactorForm::made_by_use);

/// refresh() of every factor with its master; dense ones by one call.
struct FactorRefresh {
  LowRankFactor* factor = nullptr;
  at::Tensor master;
};
void refresh_factors(const std::vector<FactorRefresh>& refreshes);

/// Columns that s must have for a factor of this rank, in this compute dtype on this device.
int64_t padded_rank(int64_t rank, at::ScalarType compute, at::Device device);

/// y[rows, column_begin … + n) += s·factor, inside a frozen product.
struct LowRankTerm {
  RowRange rows;
  int64_t column_begin = 0;
  at::Tensor s;  ///< [rows.count(), padded_rank] compute dtype
  const LowRankFactor* factor = nullptr;
};

/// One job's part of a grouped shrink: s = scale · x[rows]·factorᵀ, f32 (f64) accumulation, rounded once.
struct ShrinkGroup {
  RowRange rows;
  const LowRankFactor* factor = nullptr;
  double scale = 1;
  at::Tensor s;  ///< out, allocated here: [rows.count(), padded_rank] compute dtype
};
/// x [tokens, n], rows contiguous in their columns (a column slice will do). Fills every group's s.
void shrink(const at::Tensor& x, std::vector<ShrinkGroup>& groups);

/// One job's part of a grouped expansion outside a frozen product of ours: bottleneck adapters, LoRA under dropout's mask, and
/// terms of a product that ATen computes. y[rows, column_begin …] += mask ⊙ round(s·factor) + bias.
struct ExpandGroup {
  RowRange rows;
  int64_t column_begin = 0;
  at::Tensor s;  ///< [rows.count(), padded_rank] compute dtype
  const LowRankFactor* factor = nullptr;
  std::optional<DropoutKey> dropout;
  at::Tensor bias;  ///< [n] accumulation dtype, or undefined
};
struct ExpandOptions {
  at::Tensor residual;  ///< [tokens, n]: added to the groups' rows; or undefined
  DropoutRows dropout;  ///< where a group has a mask
};
/// y[row] = residual + y + what its groups add, rounded once per group; y [tokens, …] with contiguous columns, compute dtype or, as
/// the residual then, accumulation dtype. Groups have disjoint rows or the same; of the same rows they are added in the order given.
/// All groups have a mask or none.
void add_expansions(at::Tensor& y, const std::vector<ExpandGroup>& groups, const ExpandOptions& options = {});

/// One atom's part of a grouped gradient: gradient[i, :] += Σ over the atom's rows of left[row, i]·right[row, :].
struct GradientGroup {
  RowRange rows;        ///< rows of `right`
  at::Tensor left;      ///< [rows.count(), ≥ rank] compute dtype: a slice of the job's s
  at::Tensor gradient;  ///< [rank, n] accumulation dtype, contiguous
};
/// right [tokens, n] (a column slice will do). Groups of one gradient are added in the order given; a group's sum is
/// formed first, in an order that depends on its own rows only. (A GPU's kernels sum groups whose rows follow one another together.)
void accumulate_gradients(const at::Tensor& right, const std::vector<GradientGroup>& groups);

/// One atom's part of a bias's gradient: gradient[j] += Σ over the rows of right[row, j].
struct RowSum {
  at::Tensor right;     ///< [rows, n], rows contiguous in their columns
  at::Tensor gradient;  ///< [n] accumulation dtype, contiguous
};
/// Sums of one gradient follow one another and are added in the order given; a sum is formed first, rows ascending.
void accumulate_row_sums(const std::vector<RowSum>& sums);

}  // namespace cotune
