#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "kernels/matrix.h"
#include "kernels/product_reference.h"

namespace cotune::kernels {
namespace {

struct Ledger {
  int64_t live = 0;
  int64_t calls = 0;
};
MemorySource counted(Ledger& ledger) {
  return {[](void* context, size_t bytes) {
            auto* mine = static_cast<Ledger*>(context);
            mine->live += static_cast<int64_t>(bytes);
            ++mine->calls;
            return MemorySource::heap().allocate(nullptr, bytes);
          },
          [](void* context, void* memory, size_t bytes) noexcept {
            static_cast<Ledger*>(context)->live -= static_cast<int64_t>(bytes);
            MemorySource::heap().release(nullptr, memory, bytes);
          },
          &ledger};
}

TEST(PackedMatrix, HoldsTheSourceInEveryOrderAndDtype) {
  std::mt19937 source(3);
  for (const DType from : {DType::bf16, DType::f32}) {
    for (const DType to : {DType::bf16, DType::f32}) {
      for (const auto& [k, n] :
           {std::pair<int64_t, int64_t>{1, 1}, {33, 70}, {576, 16}, {16, 576}, {100, 1000}}) {
        const Matrix rows = Matrix::random(k, n, from, source, 3);
        Matrix transposed(n, k, from, 5);
        for (int64_t i = 0; i < k; ++i) {
          for (int64_t j = 0; j < n; ++j) transposed.set(j, i, static_cast<float>(rows.at(i, j)));
        }
        const PackedMatrix a = PackedMatrix::from_rows(rows.data(), k, n, rows.stride(), from, to);
        PackedMatrix b(k, n, to);
        b.pack_columns(0, n, {transposed.data(), transposed.stride(), from, MatrixView::Order::transposed});
        ASSERT_EQ(a.bytes(), b.bytes());
        EXPECT_EQ(std::memcmp(a.panel(0), b.panel(0), static_cast<size_t>(a.bytes())), 0);
        for (int64_t i = 0; i < k; ++i) {
          for (int64_t j = 0; j < n; ++j) {
            const auto value = static_cast<float>(rows.at(i, j));
            ASSERT_EQ(a.at(i, j), to == DType::f32 ? value : widen_word(round_word(value)));
          }
        }
      }
    }
  }
}

TEST(PackedMatrix, PadsWithZero) {
  std::mt19937 source(3);
  const Matrix rows = Matrix::random(33, 40, DType::bf16, source);
  const PackedMatrix packed = pack(rows);
  EXPECT_EQ(packed.padded_k(), 64);
  EXPECT_EQ(packed.padded_n(), 64);
  EXPECT_EQ(packed.bytes(), 64 * 64 * 2);
  const auto* words = static_cast<const uint16_t*>(packed.panel(0));
  int64_t nonzero = 0;
  for (int64_t i = 0; i < 64 * 64; ++i) nonzero += words[i] != 0;
  EXPECT_LE(nonzero, 33 * 40);
}

TEST(PackedMatrix, JoinsMatricesSideBySide) {
  std::mt19937 source(3);
  for (const DType dtype : {DType::bf16, DType::f32}) {
    for (const auto order : {MatrixView::Order::rows, MatrixView::Order::transposed}) {
      // Columns 0 to 37 and 37 to 87 of a matrix with 49 rows, the second first.
      const bool rows = order == MatrixView::Order::rows;
      const Matrix left =
          rows ? Matrix::random(49, 37, DType::f32, source) : Matrix::random(37, 49, DType::f32, source);
      const Matrix right =
          rows ? Matrix::random(49, 50, DType::f32, source) : Matrix::random(50, 49, DType::f32, source);
      PackedMatrix packed(49, 87, dtype);
      packed.pack_columns(37, 50, {right.data(), right.stride(), DType::f32, order});
      packed.pack_columns(0, 37, {left.data(), left.stride(), DType::f32, order});
      for (int64_t i = 0; i < 49; ++i) {
        for (int64_t j = 0; j < 87; ++j) {
          const Matrix& from = j < 37 ? left : right;
          const int64_t column = j < 37 ? j : j - 37;
          const auto value = static_cast<float>(rows ? from.at(i, column) : from.at(column, i));
          ASSERT_EQ(packed.at(i, j), dtype == DType::f32 ? value : widen_word(round_word(value)))
              << i << ", " << j;
        }
      }
    }
  }
}

TEST(PackedMatrix, RoundsToNearestEvenAndKeepsNaN) {
  const float values[] = {1.00390625F,
                          1.01171875F,
                          std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(),
                          std::bit_cast<float>(0x7f800001u),
                          -0.0F,
                          3.4e38F};
  const PackedMatrix packed = PackedMatrix::from_rows(values, 1, 7, 7, DType::f32, DType::bf16);
  EXPECT_EQ(packed.at(0, 0), 1.0F);
  EXPECT_EQ(packed.at(0, 1), 1.015625F);
  EXPECT_TRUE(std::isnan(packed.at(0, 2)));
  EXPECT_TRUE(std::isinf(packed.at(0, 3)));
  EXPECT_TRUE(std::isnan(packed.at(0, 4)));
  EXPECT_TRUE(std::signbit(packed.at(0, 5)));
  EXPECT_TRUE(std::isinf(packed.at(0, 6)));
}

TEST(PackedMatrix, TakesItsMemoryFromTheGivenSourceAndRepacksWithoutIt) {
  std::mt19937 source(3);
  Ledger ledger;
  {
    const Matrix rows = Matrix::random(64, 64, DType::f32, source);
    PackedMatrix packed(64, 64, DType::bf16, counted(ledger));
    EXPECT_EQ(ledger.live, packed.bytes());
    packed.repack({rows.data(), rows.stride(), DType::f32, MatrixView::Order::rows});
    const PackedMatrix moved = std::move(packed);
    EXPECT_EQ(ledger.calls, 1);
    EXPECT_EQ(moved.at(5, 6), widen_word(round_word(static_cast<float>(rows.at(5, 6)))));
  }
  EXPECT_EQ(ledger.live, 0);
}

}  // namespace
}  // namespace cotune::kernels
