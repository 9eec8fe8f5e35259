/// Slow truth and random data for the tests of the matrix kernels.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/float_parts.h"
#include "kernels/isa.h"
#include "kernels/matrix.h"

namespace cotune::kernels {

inline float widen_word(uint16_t word) {
  return std::bit_cast<float>(static_cast<uint32_t>(word) << 16);
}
inline uint16_t round_word(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// A matrix in a compute dtype with a stride; the bytes between rows hold NaN, so that reading them shows.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns, DType dtype, int64_t padding = 0)
      : rows_(rows),
        columns_(columns),
        stride_(columns + padding),
        dtype_(dtype),
        bytes_(static_cast<size_t>(rows * stride_ * bytes_of(dtype)), '\xff') {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) set(i, j, 0);
    }
  }
  static Matrix random(int64_t rows, int64_t columns, DType dtype, std::mt19937& source,
                       int64_t padding = 0) {
    Matrix matrix(rows, columns, dtype, padding);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) matrix.set(i, j, normal(source));
    }
    return matrix;
  }

  void set(int64_t i, int64_t j, float value) {
    const auto at = static_cast<size_t>(i * stride_ + j);
    if (dtype_ == DType::f32) {
      reinterpret_cast<float*>(bytes_.data())[at] = value;
    } else {
      reinterpret_cast<uint16_t*>(bytes_.data())[at] = round_word(value);
    }
  }
  double at(int64_t i, int64_t j) const {
    const auto index = static_cast<size_t>(i * stride_ + j);
    if (dtype_ == DType::f32) return reinterpret_cast<const float*>(bytes_.data())[index];
    return widen_word(reinterpret_cast<const uint16_t*>(bytes_.data())[index]);
  }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  const char* row(int64_t i) const { return bytes_.data() + i * stride_ * bytes_of(dtype_); }
  char* row(int64_t i) { return bytes_.data() + i * stride_ * bytes_of(dtype_); }
  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  int64_t stride() const { return stride_; }
  int64_t row_bytes() const { return columns_ * bytes_of(dtype_); }
  DType dtype() const { return dtype_; }
  const std::vector<char>& bytes() const { return bytes_; }

 private:
  int64_t rows_, columns_, stride_;
  DType dtype_;
  std::vector<char> bytes_;
};

/// A copy of a matrix whose last byte is the last byte before a page that nobody may read, and whose first
/// page follows another such page.
class FencedCopy {
 public:
  explicit FencedCopy(const Matrix& matrix) : data_bytes_((matrix.bytes().size() + page - 1) / page * page) {
    memory_ = static_cast<char*>(
        mmap(nullptr, data_bytes_ + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    EXPECT_EQ(mprotect(memory_ + page, data_bytes_, PROT_READ | PROT_WRITE), 0);
    data_ = memory_ + page + data_bytes_ - matrix.bytes().size();
    std::memcpy(data_, matrix.bytes().data(), matrix.bytes().size());
  }
  FencedCopy(const FencedCopy&) = delete;
  FencedCopy& operator=(const FencedCopy&) = delete;
  ~FencedCopy() { munmap(memory_, data_bytes_ + 2 * page); }
  void* data() { return data_; }

 private:
  static constexpr size_t page = 4096;
  size_t data_bytes_;
  char* memory_;
  char* data_;
};

/// Whole elements, or as `isa` multiplies with.
inline PackedMatrix pack(const Matrix& matrix, Isa isa = Isa::none, int parts = largest_part_count) {
  PackedMatrix packed(matrix.rows(), matrix.columns(), matrix.dtype(), MemorySource::heap(),
                      isa == Isa::amx_f32 ? parts : 0);
  packed.repack({matrix.data(), matrix.stride(), matrix.dtype(), MatrixView::Order::rows});
  return packed;
}

/// Largest difference that f32 sums of terms with absolute sum `magnitude` and one rounding of `value` may
/// show.
inline double tolerance(DType dtype, double value, double magnitude) {
  return (dtype == DType::bf16 ? std::ldexp(std::abs(value), -8) : std::ldexp(std::abs(value), -24)) +
         1e-6 * magnitude + 1e-30;
}

/// The instruction sets of this machine, each with its dtype.
inline std::vector<Isa> machine_isas() {
  std::vector<Isa> isas;
  if (cpu_features().avx2) isas.insert(isas.end(), {Isa::avx2, Isa::avx2_bf16});
  if (cpu_features().avx512) isas.insert(isas.end(), {Isa::avx512, Isa::avx512_widened});
  if (cpu_features().avx512_bf16) isas.push_back(Isa::avx512_bf16);
  if (cpu_features().amx_bf16) isas.push_back(Isa::amx_bf16);
  if (cpu_features().amx_bf16) isas.push_back(Isa::amx_f32);
  return isas;
}
inline DType dtype_of(Isa isa) {
  return isa == Isa::avx2 || isa == Isa::avx512 || isa == Isa::amx_f32 ? DType::f32 : DType::bf16;
}

class OnEveryIsa : public testing::TestWithParam<Isa> {
 protected:
  Isa isa() const { return GetParam(); }
  DType dtype() const { return dtype_of(GetParam()); }
  std::mt19937 source{7};
};

inline std::string isa_name(const testing::TestParamInfo<Isa>& info) {
  switch (info.param) {
    case Isa::avx2: return "avx2";
    case Isa::avx2_bf16: return "avx2_bf16";
    case Isa::avx512: return "avx512";
    case Isa::avx512_widened: return "avx512_widened";
    case Isa::avx512_bf16: return "avx512_bf16";
    case Isa::amx_bf16: return "amx_bf16";
    case Isa::amx_f32: return "amx_f32";
    case Isa::none: break;
  }
  return "none";
}

}  // namespace cotune::kernels
