#include "kernels/float_parts.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/product.h"
#include "kernels/product_reference.h"

namespace cotune::kernels {
namespace {

/// Random values whose significands have `bits` bits.
Matrix of_bits(int64_t rows, int64_t columns, int bits, std::mt19937& source) {
  Matrix matrix = Matrix::random(rows, columns, DType::f32, source);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const auto word = std::bit_cast<uint32_t>(static_cast<float>(matrix.at(i, j)));
      matrix.set(i, j, std::bit_cast<float>(word & ~((1u << (24 - bits)) - 1)));
    }
  }
  return matrix;
}

int parts_of(const Matrix& matrix) {
  return exact_part_count(static_cast<const float*>(matrix.data()), matrix.rows() * matrix.columns());
}

TEST(FloatParts, CountsThePartsThatHoldEveryValueExactly) {
  std::mt19937 source(5);
  EXPECT_EQ(parts_of(of_bits(70, 90, 8, source)), 1);   // stored as bf16
  EXPECT_EQ(parts_of(of_bits(70, 90, 11, source)), 2);  // stored as f16
  EXPECT_EQ(parts_of(of_bits(70, 90, 16, source)), 2);
  EXPECT_EQ(parts_of(of_bits(70, 90, 17, source)), 3);
  EXPECT_EQ(parts_of(of_bits(70, 90, 24, source)), 3);
  Matrix one_odd = of_bits(70, 90, 8, source);
  one_odd.set(69, 89, 1.0000001F);
  EXPECT_EQ(parts_of(one_odd), 3);
  EXPECT_EQ(exact_part_count(nullptr, 0), 1);
}

class PackedParts : public testing::Test {
 protected:
  void SetUp() override {
    if (!cpu_features().amx_bf16) GTEST_SKIP() << "this machine has no AMX BF16";
  }
  std::mt19937 source{5};
};

TEST_F(PackedParts, HoldTheSourceInBothOrders) {
  for (const auto& [bits, parts] : {std::pair{8, 1}, {11, 2}, {16, 2}, {24, 3}}) {
    for (const auto& [k, n] :
         {std::pair<int64_t, int64_t>{1, 1}, {33, 70}, {576, 16}, {16, 576}, {130, 1000}}) {
      const Matrix rows = of_bits(k, n, bits, source);
      Matrix transposed(n, k, DType::f32, 5);
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t j = 0; j < n; ++j) transposed.set(j, i, static_cast<float>(rows.at(i, j)));
      }
      const PackedMatrix a = pack(rows, Isa::amx_f32, parts);
      PackedMatrix b(k, n, DType::f32, MemorySource::heap(), parts);
      b.repack({transposed.data(), transposed.stride(), DType::f32, MatrixView::Order::transposed});
      EXPECT_EQ(a.bytes(), (k + 31) / 32 * 32 * ((n + 31) / 32 * 32) * 2 * parts);
      ASSERT_EQ(a.bytes(), b.bytes());
      EXPECT_EQ(std::memcmp(a.panel(0), b.panel(0), static_cast<size_t>(a.bytes())), 0);
      for (int64_t i = 0; i < k; ++i) {
        for (int64_t j = 0; j < n; ++j) ASSERT_EQ(a.at(i, j), static_cast<float>(rows.at(i, j)));
      }
    }
  }
}

TEST_F(PackedParts, JoinMatricesSideBySide) {
  const Matrix left = Matrix::random(49, 37, DType::f32, source),
               right = Matrix::random(50, 49, DType::f32, source);
  PackedMatrix packed(49, 87, DType::f32, MemorySource::heap(), 3);
  packed.pack_columns(37, 50, {right.data(), right.stride(), DType::f32, MatrixView::Order::transposed});
  packed.pack_columns(0, 37, {left.data(), left.stride(), DType::f32, MatrixView::Order::rows});
  for (int64_t i = 0; i < 49; ++i) {
    for (int64_t j = 0; j < 87; ++j) ASSERT_EQ(packed.at(i, j), j < 37 ? left.at(i, j) : right.at(j - 37, i));
  }
}

TEST_F(PackedParts, ThatSufficeGiveTheProductOfThree) {
  for (const auto& [bits, parts] : {std::pair{8, 1}, {16, 2}}) {
    const Matrix x = Matrix::random(45, 700, DType::f32, source), b = of_bits(700, 96, bits, source);
    Matrix fewer(45, 96, DType::f32), three(45, 96, DType::f32);
    product(Isa::amx_f32, x.data(), x.stride(), 45, pack(b, Isa::amx_f32, parts), fewer.data(), 96);
    product(Isa::amx_f32, x.data(), x.stride(), 45, pack(b, Isa::amx_f32, 3), three.data(), 96);
    EXPECT_EQ(fewer.bytes(), three.bytes()) << bits << " bits";  // the missing parts only add zeros
  }
}

TEST_F(PackedParts, MultiplyAsExactlyAsVectorsInF32) {
  // Values over many magnitudes. The truth is in double precision; errors are compared in units of the sum's
  // magnitude.
  Matrix x = Matrix::random(64, 1536, DType::f32, source), b = Matrix::random(1536, 64, DType::f32, source);
  std::uniform_int_distribution<int> exponent(-30, 30);
  for (int64_t k = 0; k < 1536; ++k) {
    const int scale = exponent(source);
    for (int64_t i = 0; i < 64; ++i) x.set(i, k, std::ldexp(static_cast<float>(x.at(i, k)), scale));
    for (int64_t j = 0; j < 64; ++j) b.set(k, j, std::ldexp(static_cast<float>(b.at(k, j)), -scale));
  }
  auto worst_error = [&](Isa isa) {
    Matrix y(64, 64, DType::f32);
    product(isa, x.data(), x.stride(), 64, pack(b, isa), y.data(), 64);
    double worst = 0;
    for (int64_t i = 0; i < 64; ++i) {
      for (int64_t j = 0; j < 64; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < 1536; ++k) {
          sum += x.at(i, k) * b.at(k, j);
          magnitude += std::abs(x.at(i, k) * b.at(k, j));
        }
        worst = std::max(worst, std::abs(y.at(i, j) - sum) / magnitude);
      }
    }
    return worst;
  };
  EXPECT_LT(worst_error(Isa::amx_f32), 2 * worst_error(Isa::avx512));
  EXPECT_LT(worst_error(Isa::amx_f32), 1e-6);
}

}  // namespace
}  // namespace cotune::kernels
