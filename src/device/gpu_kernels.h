/// Kernels of our own for a GPU. A plugin brings them (plugin.h); operators call them in place of ATen where dtype and shapes
/// allow (ops/backend.h). Every pointer is of the device's memory unless it says host; work goes to the calling thread's
/// current stream, and nothing waits for it. Sums are formed in f32, in an order that depends on the row's (of a
/// gradient: its rows in the call) own numbers only, and every result is rounded once: equal bits from run to run, and in any
/// company.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

namespace cotune {

enum class GpuType { bf16, f32 };

/// Rows [begin, end).
struct GpuRows {
  int64_t begin = 0, end = 0;
  int64_t count() const { return end - begin; }
};

/// The site of a dropout mask (kernels/dropout.h gives the formula). probability in [0, 1); 0: no mask.
struct GpuMask {
  uint64_t key = 0;
  float probability = 0;
};
/// What masks depend on beside their site: [rows of the microbatch] each.
struct GpuMaskRows {
  const uint64_t* example_keys = nullptr;
  const int32_t* positions = nullptr;
};

/// One job's part of a grouped dropout: rows of x, and the row of y that the first of them goes to.
struct GpuDropoutGroup {
  GpuMask mask;
  GpuRows rows;
  int64_t target = 0;
};

/// s = scale · x[rows]·Fᵀ in bf16.
struct GpuShrink {
  GpuRows rows;
  const void* factor = nullptr;  ///< [rank, width] contiguous
  int64_t rank = 0;
  float scale = 1;
  void* s = nullptr;     ///< [rows.count(), s_stride] contiguous; zero in the columns beyond the rank
  int64_t s_stride = 0;  ///< a multiple of 8, at least the rank
};

/// One term of a grouped expansion in bf16: y[rows, column_begin … + width) += mask ⊙ (s·F) + bias.
struct GpuExpandTerm {
  GpuRows rows;
  int64_t column_begin = 0, width = 0;
  const void* s = nullptr;  ///< [rows.count(), s_stride], as shrink leaves it: zero beyond the rank up to a multiple of 8
  int64_t s_stride = 0;
  const void* factor = nullptr;  ///< [rank, width] contiguous
  int64_t rank = 0;
  GpuMask mask;
  const float* bias = nullptr;  ///< [width]
};

/// What y is before its terms are added.
struct GpuExpandStart {
  bool keeps_y = true;             ///< y itself; otherwise zero, and no value of y is read
  const void* residual = nullptr;  ///< [rows, columns] added to it; or nullptr
  int64_t residual_stride = 0;
  std::span<const GpuRows> residual_rows;  ///< those that get it; ascending, disjoint
};

/// One group of a gradient: gradient[i, :] += Σ over rows of left[row − rows.begin, i]·right[row, :].
struct GpuOuter {
  GpuRows rows;               ///< of right
  const void* left = nullptr; ///< [rows.count(), rank] bf16; an odd rank has a column of zeros behind it
  int64_t left_stride = 0, rank = 0;
  float* gradient = nullptr;  ///< [rank, width], contiguous
};

/// One atom's part of a bias's gradient: gradient[j] += Σ over the rows of values[row, j].
struct GpuColumnSum {
  const void* values = nullptr;  ///< [rows, columns], rows `stride` elements apart
  int64_t stride = 0, rows = 0, columns = 0;
  float* gradient = nullptr;  ///< [columns]
};

enum class GpuFunction : int32_t { relu, gelu, silu, tanh };
/// One job's part of a grouped activation; z, gradient and y [rows, columns] contiguous. y is none of the others.
struct GpuActivation {
  GpuFunction function = GpuFunction::relu;
  int64_t rows = 0, columns = 0;
  void* z = nullptr;
  const float* bias = nullptr;  ///< [biased]: added to the first columns of z, which keeps it rounded, before f; or nullptr
  int64_t biased = 0;
  const void* gradient = nullptr;  ///< backward
  void* y = nullptr;               ///< f(z); backward gradient ⊙ f'(z)
};

/// Rows that the kernels of sparse deltas take at a time, and those of one slab of a value's gradient.
inline constexpr int64_t gpu_sparse_tile = 32, gpu_sparse_slab = 512;

/// One delta of a grouped product: to[rows, to_column … + outputs) += from[rows, from_column …]·Δ. Entries of column j:
/// [offsets[j], offsets[j + 1]), with Δ's row in indices.
struct GpuSparseProduct {
  GpuRows rows;
  const int64_t* offsets = nullptr;  ///< [outputs + 1], from 0 to `entries`
  const int32_t* indices = nullptr;  ///< [entries]
  const float* values = nullptr;     ///< [entries]; of entry e values[places[e]] where `places` is there
  const int32_t* places = nullptr;   ///< [entries] or nullptr
  float* placed = nullptr;           ///< [entries], beside `places`: gets the values in the entries' order
  int64_t entries = 0, outputs = 0;
  int64_t from_column = 0, to_column = 0;
};
/// What the groups of a call share. The panel is for the kernels' own use: at least gpu_sparse_tile rows of from_columns; with
/// more, fewer launches.
struct GpuSparseOperands {
  const void* from = nullptr;
  int64_t from_stride = 0;
  GpuRows from_columns;  ///< those that the groups read
  void* to = nullptr;
  int64_t to_stride = 0;
  void* panel = nullptr;
  int64_t panel_bytes = 0;
};

/// One atom's part of the gradient of a delta's values: gradient[e] += Σ over rows of x[row, r(e)]·dy[row, dy_column + c(e)].
struct GpuSparseGradient {
  GpuRows rows;
  const int64_t* offsets = nullptr;  ///< as in a product, entries by dy's columns
  const int32_t* indices = nullptr;
  int64_t entries = 0, outputs = 0;
  int64_t dy_column = 0;
  float* gradient = nullptr;  ///< [entries]
};
/// The panel: at least gpu_sparse_slab rows of x_columns and dy_columns together.
struct GpuSparseGradientOperands {
  const void* x = nullptr;
  int64_t x_stride = 0, x_columns = 0;
  const void* dy = nullptr;
  int64_t dy_stride = 0;
  GpuRows dy_columns;  ///< those that the groups read
  void* panel = nullptr;
  int64_t panel_bytes = 0;
};

/// Memory of the device for a kernel's own use: so many bytes, aligned to 16.
using GpuMemory = std::function<void*(int64_t bytes)>;

/// A parameter with its gradient and moments, [count] f32 each.
struct GpuParameter {
  float *value = nullptr, *gradient = nullptr, *first_moment = nullptr, *second_moment = nullptr;
  int64_t count = 0;
};
/// [count] f32.
struct GpuArray {
  const float* values = nullptr;
  int64_t count = 0;
};
struct GpuAdamw {
  double learning_rate = 0, weight_decay = 0, beta1 = 0, beta2 = 0, epsilon = 0;
  int64_t step = 1;  ///< from 1
};

class GpuKernels {
 public:
  /// y = x · inverse_rms · weight, inverse_rms = 1/√(mean(x²) + eps). x, y [rows, columns] contiguous, x of y's type or f32; weight
  /// [columns]; inverse_rms [rows]; kept [rows, columns] of y's type: x, rounded; or nullptr.
  virtual void rms_norm(GpuType x_type, const void* x, int64_t rows, int64_t columns, const float* weight, float eps, GpuType type,
                        void* y, float* inverse_rms, void* kept) = 0;
  /// y again, with the inverse_rms that was kept: equal bits.
  virtual void rms_norm_again(GpuType type, const void* x, int64_t rows, int64_t columns, const float* weight,
                              const float* inverse_rms, void* y) = 0;
  /// dx = residual + inverse_rms · (dy·weight − x · mean(dy·weight·x) · inverse_rms²); residual may be nullptr.
  virtual void rms_norm_backward(GpuType type, const void* dy, const void* x, int64_t rows, int64_t columns,
                                 const float* weight, const float* inverse_rms, const void* residual, void* dx) = 0;

  /// Rotates the first `heads` heads of every row in place (ops/attention.h). x [rows, ≥ heads·head_dim], `stride` elements
  /// apart; cosine, sine [table_rows, head_dim/2]; direction −1 undoes it. A position beyond the table is not rotated by
  /// anything: its row becomes NaN.
  virtual void rotate(GpuType type, void* x, int64_t rows, int64_t stride, int64_t heads, int64_t head_dim,
                      const int32_t* positions, const float* cosine, const float* sine, int64_t table_rows,
                      int direction) = 0;

  /// y = silu(gate)·up; gate_up [rows, 2·width] contiguous, gate first; y [rows, width].
  virtual void swiglu(GpuType type, const void* gate_up, int64_t rows, int64_t width, void* y) = 0;
  /// Its gradient (ops/swiglu.h) and y once more, equal bits.
  virtual void swiglu_backward(GpuType type, const void* dy, const void* gate_up, int64_t rows, int64_t width,
                               void* d_gate_up, void* y) = 0;

  /// loss[i] = log Σ exp(logits[i]) − logits[i, labels[i]]. gradient (may be logits' own memory; nullptr: none) =
  /// (softmax − one-hot)·row_scale[i]. first_choice (nullptr: none): the column of the largest logit, the lowest of equals;
  /// of a NaN where there is one. logits, gradient [rows, columns] contiguous.
  virtual void softmax_cross_entropy(GpuType type, const void* logits, int64_t rows, int64_t columns,
                                     const int32_t* labels, const float* row_scale, float* losses, void* gradient,
                                     int64_t* first_choice) = 0;

  /// y[target + i] = mask ⊙ x[rows.begin + i] of every group. x rows `x_stride` elements apart; y [·, columns] contiguous.
  virtual void dropout(GpuType type, std::span<const GpuDropoutGroup> groups, GpuMaskRows mask_rows, const void* x,
                       int64_t x_stride, int64_t columns, void* y) = 0;

  /// Low-rank products of all jobs at a site, in bf16 on tensor cores (BatchLoRA, mLoRA §3.3.1). Widths are multiples of 8,
  /// pointers and strides of 16 bytes. Groups of a call share width and x.
  virtual void shrink(std::span<const GpuShrink> groups, const void* x, int64_t x_stride, int64_t width) = 0;
  /// y[row] = start + Σ terms; all of y's rows and columns are written. Terms of the same rows and columns are added before
  /// the one rounding. y [rows, columns].
  virtual void expand(std::span<const GpuExpandTerm> terms, const GpuExpandStart& start, GpuMaskRows mask_rows, void* y,
                      int64_t y_stride, int64_t rows, int64_t columns) = 0;
  /// Groups of one gradient whose rows, and whose rows of left, follow one another are summed together. right [·, width].
  /// memory: asked at most once, for what may be freed on the stream behind the call.
  virtual void outer_products(std::span<const GpuOuter> groups, const void* right, int64_t right_stride,
                              int64_t width, const GpuMemory& memory) = 0;

  /// Sums of one gradient follow one another: each is formed, then added, in the order given.
  virtual void column_sums(GpuType type, std::span<const GpuColumnSum> sums) = 0;

  /// y = f(z + bias) of every group.
  virtual void activate(GpuType type, std::span<const GpuActivation> groups) = 0;
  /// y = gradient ⊙ f'(z); no bias.
  virtual void activate_backward(GpuType type, std::span<const GpuActivation> groups) = 0;

  /// Groups of the same rows add to disjoint columns, or begin at the same: then in the order given, before the one rounding.
  /// Other groups' rows are disjoint. Elements whose column of Δ is empty keep their bits.
  virtual void sparse_products(GpuType type, std::span<const GpuSparseProduct> groups,
                               const GpuSparseOperands& operands) = 0;
  /// Groups of one gradient are added in the order given, a slab (gpu_sparse_slab rows from the group's first on) at a time.
  virtual void sparse_value_gradients(GpuType type, std::span<const GpuSparseGradient> groups,
                                      const GpuSparseGradientOperands& operands) = 0;

  /// One step of AdamW (kernels/optimizer_steps.h gives the formula) on the gradients times *multiplier; they are zero afterwards.
  /// Where *sound is false, nothing else changes. Both are on the device.
  virtual void adamw(std::span<const GpuParameter> parameters, const GpuAdamw& settings, const bool* sound,
                     const double* multiplier) = 0;
  /// sums[i] = Σ of array i's squares, in f64: not finite exactly where a value is not.
  virtual void square_sums(std::span<const GpuArray> arrays, double* sums) = 0;

 protected:
  ~GpuKernels() = default;  // the plugin's own, as long as the process
};

/// Those of the device that was chosen (compute_device.h); nullptr: none.
GpuKernels* active_gpu_kernels();
void set_active_gpu_kernels(GpuKernels* kernels);

}  // namespace cotune
