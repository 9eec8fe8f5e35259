#include "kernels/matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>
#include <type_traits>
#include <utility>

#include "base/error.h"
#include "kernels/float_parts.h"
#include "kernels/isa.h"
#include "kernels/matrix_kernels.h"
#include "kernels/matrix_packing.h"

namespace cotune::kernels {
namespace {

constexpr std::align_val_t alignment{64};
constexpr int64_t large_piece = 1 << 16;  // elements from which the threads share the packing

void* allocate_on_heap(void*, size_t bytes) {
  return ::operator new(bytes, alignment);
}
void release_to_heap(void*, void* memory, size_t) noexcept {
  ::operator delete(memory, alignment);
}

uint16_t round_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);  // NaN stays NaN
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
float widen(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

template <typename Target, typename Source>
Target convert(Source value) {
  if constexpr (std::is_same_v<Target, Source>) {
    return value;
  } else if constexpr (std::is_same_v<Target, float>) {
    return widen(value);
  } else {
    return round_to_bf16(value);
  }
}

/// Columns [begin, end) of one panel; source element (i, j) at source[i * k_stride + j * n_stride], j from
/// `begin`.
template <typename Target, typename Source>
void pack_panel(Target* panel, int64_t begin, int64_t end, int64_t k, const Source* source, int64_t k_stride,
                int64_t n_stride) {
  constexpr int64_t width = PackedMatrix::panel_columns;
  constexpr int64_t group = std::is_same_v<Target, float> ? 1 : 2;  // elements of k side by side
  constexpr int64_t k_block = 64;  // keeps the written part of the panel in cache
  for (int64_t block = 0; block < k; block += k_block) {
    const int64_t block_end = block + k_block < k ? block + k_block : k;
    for (int64_t j = begin; j < end; ++j) {
      const Source* column = source + (j - begin) * n_stride;
      for (int64_t i = block; i < block_end; ++i) {
        panel[(i / group) * width * group + j * group + i % group] = convert<Target>(column[i * k_stride]);
      }
    }
  }
}

int64_t padded_rows(int64_t k, DType dtype, int parts) {
  return padded_depth(k, dtype == DType::bf16 || parts > 0 ? 32 : 1);
}

}  // namespace

MemorySource MemorySource::heap() {
  return {allocate_on_heap, release_to_heap, nullptr};
}

PackedMatrix::PackedMatrix(int64_t k, int64_t n, DType dtype, MemorySource memory, int parts)
    : PackedMatrix(unwritten(k, n, dtype, memory, parts)) {
  if (data_ != nullptr) std::memset(data_, 0, static_cast<size_t>(bytes()));
}

PackedMatrix PackedMatrix::unwritten(int64_t k, int64_t n, DType dtype, MemorySource memory, int parts) {
  COTUNE_CHECK(k >= 0 && n >= 0, "a packed matrix of {} by {}", k, n);
  COTUNE_CHECK(parts == 0 || (dtype == DType::f32 && parts <= largest_part_count && cpu_features().amx_bf16),
               "a matrix in {} parts", parts);
  PackedMatrix matrix = shape_of(k, n, dtype, parts);
  matrix.memory_ = memory;
  if (matrix.bytes() > 0) matrix.data_ = memory.allocate(memory.context, static_cast<size_t>(matrix.bytes()));
  return matrix;
}

PackedMatrix PackedMatrix::shape_of(int64_t k, int64_t n, DType dtype, int parts) {
  PackedMatrix shape;
  shape.k_ = k;
  shape.n_ = n;
  shape.padded_k_ = padded_rows(k, dtype, parts);
  shape.dtype_ = dtype;
  shape.parts_ = parts;
  return shape;
}

int64_t PackedMatrix::bytes_for(int64_t k, int64_t n, DType dtype, int parts) {
  return shape_of(k, n, dtype, parts).bytes();
}

PackedMatrix::PackedMatrix(PackedMatrix&& other) noexcept {
  *this = std::move(other);
}

PackedMatrix& PackedMatrix::operator=(PackedMatrix&& other) noexcept {
  if (this == &other) return *this;
  free_memory();
  k_ = std::exchange(other.k_, 0);
  n_ = std::exchange(other.n_, 0);
  padded_k_ = std::exchange(other.padded_k_, 0);
  dtype_ = other.dtype_;
  parts_ = other.parts_;
  data_ = std::exchange(other.data_, nullptr);
  memory_ = other.memory_;
  return *this;
}

PackedMatrix::~PackedMatrix() {
  free_memory();
}

void PackedMatrix::free_memory() noexcept {
  if (data_ != nullptr) memory_.release(memory_.context, data_, static_cast<size_t>(bytes()));
  data_ = nullptr;
}

PackedMatrix PackedMatrix::from_rows(const void* source, int64_t k, int64_t n, int64_t stride,
                                     DType source_dtype, DType dtype, MemorySource memory) {
  PackedMatrix packed(k, n, dtype, memory);
  packed.repack({source, stride, source_dtype, MatrixView::Order::rows});
  return packed;
}

void PackedMatrix::pack_columns(int64_t first_column, int64_t count, const MatrixView& source) {
  COTUNE_CHECK(first_column >= 0 && count >= 0 && first_column + count <= n_,
               "columns {} to {} of a matrix with {}", first_column, first_column + count, n_);
  if (count == 0 || k_ == 0) return;
  const bool rows = source.order == MatrixView::Order::rows;
  const int64_t k_stride = rows ? source.stride : 1;
  const int64_t n_stride = rows ? 1 : source.stride;
  auto* by_vectors = !cpu_features().avx2 ? nullptr : vectors_for_f32() == Vectors::avx512 ? avx512::pack_panel : avx2::pack_panel;
  const int64_t first_panel = first_column / panel_columns;
  const int64_t end_panel = (first_column + count + panel_columns - 1) / panel_columns;
#pragma omp parallel for schedule(static) if (count * k_ >= large_piece)
  for (int64_t index = first_panel; index < end_panel; ++index) {
    const int64_t begin = std::max<int64_t>(first_column - index * panel_columns, 0);
    const int64_t end = std::min<int64_t>(first_column + count - index * panel_columns, panel_columns);
    char* target = static_cast<char*>(data_) + index * panel_bytes();
    const int64_t offset = (index * panel_columns + begin - first_column) * n_stride;
    if (parts_ > 0) {
      const auto* from = static_cast<const char*>(source.data) + offset * bytes_of(source.dtype);
      pack_panel_in_parts({target, begin, end - begin, k_, dtype_, {from, source.stride, source.dtype, source.order}},
                          parts_);
      continue;
    }
    if (by_vectors != nullptr) {
      const auto* from = static_cast<const char*>(source.data) + offset * bytes_of(source.dtype);
      by_vectors({target, begin, end - begin, k_, dtype_, {from, source.stride, source.dtype, source.order}});
      continue;
    }
    auto pack = [&](auto* to, const auto* from) {
      pack_panel(to, begin, end, k_, from + offset, k_stride, n_stride);
    };
    const auto* words = static_cast<const uint16_t*>(source.data);
    const auto* floats = static_cast<const float*>(source.data);
    if (dtype_ == DType::bf16) {
      auto* to = reinterpret_cast<uint16_t*>(target);
      source.dtype == DType::bf16 ? pack(to, words) : pack(to, floats);
    } else {
      auto* to = reinterpret_cast<float*>(target);
      source.dtype == DType::bf16 ? pack(to, words) : pack(to, floats);
    }
  }
}

std::vector<PackedMatrix> pack_each(std::span<const PackRequest> requests) {
  std::vector<PackedMatrix> packed(requests.size());
#pragma omp parallel for schedule(dynamic) if (requests.size() > 1)
  for (size_t i = 0; i < requests.size(); ++i) {
    const PackRequest& request = requests[i];
    packed[i] = PackedMatrix(request.k, request.n, request.dtype, request.memory, request.parts);
    packed[i].repack(request.source);
  }
  return packed;
}

float PackedMatrix::at(int64_t i, int64_t j) const {
  COTUNE_CHECK(i >= 0 && i < k_ && j >= 0 && j < n_, "element ({}, {}) of a matrix of {} by {}", i, j, k_,
               n_);
  return element(i, j);
}

void PackedMatrix::read_column(int64_t j, float* values) const {
  COTUNE_CHECK(j >= 0 && j < n_, "column {} of a matrix of {} by {}", j, k_, n_);
  for (int64_t i = 0; i < k_; ++i) values[i] = element(i, j);
}

float PackedMatrix::element(int64_t i, int64_t j) const {
  const void* from = panel(j / panel_columns);
  const int64_t column = j % panel_columns;
  if (parts_ > 0) {
    constexpr int64_t part_words = float_part_depth * panel_columns;
    const auto* words = static_cast<const uint16_t*>(from) + i / float_part_depth * parts_ * part_words +
                        i % float_part_depth / 2 * 2 * panel_columns + column * 2 + i % 2;
    float sum = 0;
    for (int part = parts_ - 1; part >= 0; --part) sum += widen(words[part * part_words]);
    return sum;
  }
  if (dtype_ == DType::f32) return static_cast<const float*>(from)[i * panel_columns + column];
  return widen(static_cast<const uint16_t*>(from)[(i / 2) * 2 * panel_columns + column * 2 + i % 2]);
}

const MatrixKernels& matrix_kernels(Isa isa, DType dtype) {
  const MatrixKernels* kernels = isa == Isa::avx2          ? &avx2_kernels
                                 : isa == Isa::avx2_bf16   ? &avx2_bf16_kernels
                                 : isa == Isa::amx_bf16    ? &amx_bf16_kernels
                                 : isa == Isa::amx_f32     ? &amx_f32_kernels
                                 : isa == Isa::avx512_bf16 ? &avx512_bf16_kernels
                                 : isa == Isa::avx512      ? &avx512_kernels
                                 : isa == Isa::avx512_widened ? &avx512_widened_kernels
                                                              : nullptr;
  COTUNE_CHECK(kernels != nullptr && kernels->dtype == dtype, "{} has no products in {}", to_string(isa),
               dtype == DType::bf16 ? "bf16" : "f32");
  return *kernels;
}

const MatrixKernels& narrow_matrix_kernels(Isa isa, DType dtype) {
  return matrix_kernels(isa == Isa::amx_f32 ? Isa::avx512 : isa, dtype);
}

}  // namespace cotune::kernels
