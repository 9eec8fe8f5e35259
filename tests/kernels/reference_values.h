/// Random arrays in the kernels' dtypes, and comparisons, for the kernel tests.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/random.h"
#include "kernels/isa.h"
#include "kernels/matrix.h"

namespace cotune::kernels {

inline float widen(uint16_t bits) {
  const uint32_t word = uint32_t(bits) << 16;
  float value;
  std::memcpy(&value, &word, sizeof value);
  return value;
}

/// Round to nearest even.
inline uint16_t narrow(float value) {
  uint32_t word;
  std::memcpy(&word, &value, sizeof word);
  return uint16_t((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

/// An array in bf16 or f32, read as double.
class Values {
 public:
  Values() = default;
  Values(DType dtype, int64_t count) : dtype_(dtype), bytes_(count * bytes_of(dtype)) {}

  static Values normal(DType dtype, int64_t count, uint64_t key, double scale = 1) {
    Values values(dtype, count);
    for (int64_t i = 0; i < count; ++i) values.set(i, scale * cotune::normal(key, uint64_t(i)));
    return values;
  }

  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  /// The address of element i.
  void* at(int64_t i) { return bytes_.data() + i * bytes_of(dtype_); }
  const void* at(int64_t i) const { return bytes_.data() + i * bytes_of(dtype_); }
  int64_t size() const { return int64_t(bytes_.size()) / bytes_of(dtype_); }

  double operator[](int64_t i) const {
    if (dtype_ == DType::f32) {
      float value;
      std::memcpy(&value, at(i), sizeof value);
      return value;
    }
    uint16_t value;
    std::memcpy(&value, at(i), sizeof value);
    return widen(value);
  }
  void set(int64_t i, double value) {
    const float wide = float(value);
    const uint16_t half = narrow(wide);
    if (dtype_ == DType::f32) {
      std::memcpy(at(i), &wide, sizeof wide);
    } else {
      std::memcpy(at(i), &half, sizeof half);
    }
  }
  bool operator==(const Values&) const = default;

 private:
  DType dtype_ = DType::f32;
  std::vector<std::byte> bytes_;
};

/// |a − b| / |b| over whole arrays.
template <typename A, typename B>
double relative_distance(const A& a, const B& b, int64_t count) {
  double difference = 0, size = 0;
  for (int64_t i = 0; i < count; ++i) {
    difference += (double(a[i]) - double(b[i])) * (double(a[i]) - double(b[i]));
    size += double(b[i]) * double(b[i]);
  }
  return size == 0 ? std::sqrt(difference) : std::sqrt(difference / size);
}

/// Every element within one rounding of dtype (and `slack` of the largest value) of the double result.
template <typename B>
void expect_rounded_once(const Values& got, const B& expected, int64_t count, DType dtype, double slack = 1e-6) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(double(expected[i])));
  const double step = dtype == DType::bf16 ? 1.03 / 256 : 4e-7;  // half a step, and the kernel's own error
  for (int64_t i = 0; i < count; ++i) {
    ASSERT_NEAR(got[i], expected[i], step * std::abs(double(expected[i])) + slack * largest + 1e-30) << "element " << i;
  }
}

#define COTUNE_NEEDS_VECTORS \
  if (!::cotune::kernels::cpu_features().avx2) GTEST_SKIP() << "this machine lacks the instructions"

}  // namespace cotune::kernels
