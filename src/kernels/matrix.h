/// Matrices in the order in which the products read them, and the words that the product kernels share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cotune::kernels {

/// The compute dtypes of the kernels. Sums are f32 in both.
enum class DType { bf16, f32 };

constexpr int64_t bytes_of(DType dtype) {
  return dtype == DType::bf16 ? 2 : 4;
}

/// Rows [begin, end) of a microbatch; end ≥ begin.
struct RowRange {
  int64_t begin = 0;
  int64_t end = 0;

  int64_t count() const { return end - begin; }
  bool operator==(const RowRange&) const = default;
};

/// Where packed matrices take their memory, so that the caller can count bytes by kind. Plain functions and a
/// context: both must outlive every matrix made with them. `allocate` returns memory aligned to 64 bytes or
/// throws.
struct MemorySource {
  void* (*allocate)(void* context, size_t bytes) = nullptr;
  void (*release)(void* context, void* memory, size_t bytes) noexcept = nullptr;
  void* context = nullptr;

  /// operator new, aligned to 64 bytes.
  static MemorySource heap();
};

/// A matrix B [k, n] somewhere in memory, element (i, j):
///   Order::rows        data[i * stride + j]   (B as it is)
///   Order::transposed  data[j * stride + i]   (Bᵀ, as Hugging Face stores a Linear's weight [out, in])
/// Strides count elements.
struct MatrixView {
  enum class Order { rows, transposed };

  const void* data = nullptr;
  int64_t stride = 0;
  DType dtype = DType::f32;
  Order order = Order::rows;
};

/// A matrix B [k, n] as the right operand of y = x·B: panels of 32 columns, each panel contiguous.
///   bf16  panel [padded_k / 2][32][2]: pairs of k side by side; padded_k is k rounded up to a multiple of 32
///   f32   panel [k][32];               padded_k is k
///   f32 in parts  panel [padded_k / 32][parts][16][32][2]: each element as the sum of 1 to 3 bf16 parts, largest
///         first (kernels/float_parts.h); for every 32 of k, part by part in the order of bf16. What Isa::amx_f32 reads
/// What pads k and n is zero. Element values are those of the source; f32 → bf16 rounds to nearest even, and
/// NaN stays NaN. Owns its memory; can be moved, not copied. Reading from several threads is safe.
class PackedMatrix {
 public:
  static constexpr int64_t panel_columns = 32;

  PackedMatrix() = default;
  /// All zero. parts > 0 (f32 only, on a machine with AMX): in parts; what they cannot hold of an element is lost.
  PackedMatrix(int64_t k, int64_t n, DType dtype, MemorySource memory = MemorySource::heap(), int parts = 0);
  /// Of the same shape, with bytes that mean nothing until all of them, pads too, have been copied from a matrix of this shape.
  static PackedMatrix unwritten(int64_t k, int64_t n, DType dtype, MemorySource memory = MemorySource::heap(), int parts = 0);
  PackedMatrix(PackedMatrix&& other) noexcept;
  PackedMatrix& operator=(PackedMatrix&& other) noexcept;
  ~PackedMatrix();

  /// From source [k, n] in row order; stride in elements.
  static PackedMatrix from_rows(const void* source, int64_t k, int64_t n, int64_t stride, DType source_dtype,
                                DType dtype, MemorySource memory = MemorySource::heap());

  /// Overwrites columns [first_column, first_column + count) for all k; `source` is [k, count]. Several
  /// matrices side by side (q, k, v; gate and up in groups of 16 columns) are packed by several calls.
  /// Allocates nothing. Uses the OpenMP threads when the piece is large.
  void pack_columns(int64_t first_column, int64_t count, const MatrixView& source);
  /// pack_columns over the whole width: for adapter factors after every optimizer step. Allocates nothing.
  void repack(const MatrixView& source) { pack_columns(0, n_, source); }

  int64_t k() const { return k_; }
  int64_t n() const { return n_; }
  /// The rows that the kernels read, and the columns that a left operand of a low-rank term must have.
  int64_t padded_k() const { return padded_k_; }
  /// n rounded up to a multiple of 32.
  int64_t padded_n() const { return panel_count() * panel_columns; }
  int64_t panel_count() const { return (n_ + panel_columns - 1) / panel_columns; }
  DType dtype() const { return dtype_; }
  /// bf16 parts of an element; 0 where elements are stored whole.
  int parts() const { return parts_; }
  /// Bytes that a matrix of this shape holds.
  static int64_t bytes_for(int64_t k, int64_t n, DType dtype, int parts = 0);
  /// Bytes held.
  int64_t bytes() const { return panel_bytes() * panel_count(); }
  int64_t panel_bytes() const { return padded_k_ * depth_bytes(); }
  /// Bytes of a panel for each one of k.
  int64_t depth_bytes() const { return panel_columns * (parts_ > 0 ? 2 * parts_ : bytes_of(dtype_)); }
  const void* panel(int64_t index) const { return static_cast<const char*>(data_) + index * panel_bytes(); }
  bool empty() const { return data_ == nullptr; }

  /// The element as it is stored, widened: for tests and for merging.
  float at(int64_t i, int64_t j) const;
  /// Column j, k values as they are stored, widened: a row of the weight that was packed transposed.
  void read_column(int64_t j, float* values) const;

 private:
  static PackedMatrix shape_of(int64_t k, int64_t n, DType dtype, int parts);  ///< without memory
  void free_memory() noexcept;
  float element(int64_t i, int64_t j) const;  ///< within the matrix

  int64_t k_ = 0, n_ = 0, padded_k_ = 0;
  DType dtype_ = DType::f32;
  int parts_ = 0;
  void* data_ = nullptr;
  MemorySource memory_;
};

/// A matrix to be packed: its shape and memory, and where its values are.
struct PackRequest {
  int64_t k = 0, n = 0;
  DType dtype = DType::f32;
  int parts = 0;
  MemorySource memory;  ///< called by the threads: it must not throw
  MatrixView source;
};
/// Packs each; the OpenMP threads share them.
std::vector<PackedMatrix> pack_each(std::span<const PackRequest> requests);

}  // namespace cotune::kernels
