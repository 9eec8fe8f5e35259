#include "kernels/product.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>
#include <limits>
#include <optional>

#include "kernels/product_reference.h"
#include "kernels/reference_values.h"

namespace cotune::kernels {
namespace {

struct TermCase {
  RowRange rows;
  int64_t rank, column_begin, columns;
};

/// One product with everything in it, and its truth.
struct Case {
  Matrix x, b, bias, residual;
  std::vector<TermCase> shapes;
  std::vector<Matrix> s, factors;
  std::vector<RowRange> residual_rows;
  bool with_bias;

  Case(DType dtype, int64_t rows, int64_t k, int64_t n, std::vector<TermCase> terms,
       std::vector<RowRange> with_residual, bool has_bias, std::mt19937& source, int64_t padding = 3)
      : x(Matrix::random(rows, k, dtype, source, padding)),
        b(Matrix::random(k, n, dtype, source)),
        bias(Matrix::random(1, n, dtype, source)),
        residual(Matrix::random(rows, n, dtype, source, padding)),
        shapes(std::move(terms)),
        residual_rows(std::move(with_residual)),
        with_bias(has_bias) {
    for (const TermCase& term : shapes) {
      factors.push_back(Matrix::random(term.rank, term.columns, dtype, source));
      Matrix left(term.rows.count(), padded(term.rank), dtype, padding);
      const Matrix values = Matrix::random(term.rows.count(), term.rank, dtype, source);
      for (int64_t i = 0; i < left.rows(); ++i) {
        for (int64_t j = 0; j < term.rank; ++j) left.set(i, j, static_cast<float>(values.at(i, j)));
      }
      s.push_back(std::move(left));
    }
  }

  static int64_t padded(int64_t rank) { return (rank + 31) / 32 * 32; }

  Matrix run(Isa isa, std::optional<RowRange> only = std::nullopt, bool wide = false) const {
    const RowRange rows = only.value_or(RowRange{0, x.rows()});
    std::vector<PackedMatrix> packed;
    std::vector<LowRankTerm> terms;
    for (const Matrix& factor : factors) packed.push_back(pack(factor, isa));
    for (size_t i = 0; i < shapes.size(); ++i) {
      const RowRange mine = {std::max(shapes[i].rows.begin, rows.begin),
                             std::min(shapes[i].rows.end, rows.end)};
      if (mine.begin >= mine.end) continue;
      terms.push_back({{mine.begin - rows.begin, mine.end - rows.begin},
                       shapes[i].column_begin,
                       shapes[i].column_begin + shapes[i].columns,
                       s[i].row(mine.begin - shapes[i].rows.begin),
                       s[i].stride(),
                       &packed[i]});
    }
    std::vector<RowRange> with_residual;
    for (const RowRange& range : residual_rows) {
      const RowRange mine = {std::max(range.begin, rows.begin), std::min(range.end, rows.end)};
      if (mine.begin < mine.end) with_residual.push_back({mine.begin - rows.begin, mine.end - rows.begin});
    }
    ProductOptions options;
    options.terms = terms;
    options.bias = with_bias ? bias.data() : nullptr;
    options.residual = residual.row(rows.begin);
    options.residual_stride = residual.stride();
    options.residual_rows = with_residual;
    options.wide = wide;
    Matrix y(rows.count(), b.columns(), wide ? DType::f32 : x.dtype(), 5);
    product(isa, x.row(rows.begin), x.stride(), rows.count(), pack(b, isa), y.data(), y.stride(), options);
    return y;
  }

  void expect_true(const Matrix& y) const {
    for (int64_t i = 0; i < y.rows(); ++i) {
      for (int64_t j = 0; j < y.columns(); ++j) {
        double sum = 0, magnitude = 0;
        auto add = [&](double value) {
          sum += value;
          magnitude += std::abs(value);
        };
        for (int64_t k = 0; k < x.columns(); ++k) add(x.at(i, k) * b.at(k, j));
        for (size_t t = 0; t < shapes.size(); ++t) {
          const TermCase& term = shapes[t];
          if (i < term.rows.begin || i >= term.rows.end || j < term.column_begin ||
              j >= term.column_begin + term.columns)
            continue;
          for (int64_t k = 0; k < term.rank; ++k)
            add(s[t].at(i - term.rows.begin, k) * factors[t].at(k, j - term.column_begin));
        }
        if (with_bias) add(bias.at(0, j));
        for (const RowRange& range : residual_rows) {
          if (i >= range.begin && i < range.end) add(residual.at(i, j));
        }
        ASSERT_NEAR(y.at(i, j), sum, tolerance(x.dtype(), sum, magnitude)) << "row " << i << " column " << j;
      }
    }
  }
};

class Product : public OnEveryIsa {};
INSTANTIATE_TEST_SUITE_P(Machine, Product, testing::ValuesIn(machine_isas()), isa_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Product);

TEST_P(Product, AgreesWithDoublePrecisionOnRaggedShapes) {
  for (const int64_t rows : {1, 2, 7, 13, 16, 17, 31, 33, 64, 131}) {
    for (const int64_t k : {1, 2, 31, 32, 96, 100}) {
      for (const int64_t n : {1, 31, 32, 70}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << k << " x " << n);
        const Case all(dtype(), rows, k, n, {}, {}, false, source);
        all.expect_true(all.run(isa()));
      }
    }
  }
}

TEST_P(Product, AgreesWhenTheDepthNeedsSeveralBlocks) {
  for (const int64_t k : {577, 1536, 2100, 4128}) {
    SCOPED_TRACE(k);
    const Case all(dtype(), 45, k, 64, {{{3, 40}, 16, 0, 64}}, {{0, 20}}, true, source, 0);
    all.expect_true(all.run(isa()));
  }
}

TEST_P(Product, AgreesWhereDeepRowsAreCopiedBecauseTheirStrideIsOfCacheSets) {
  for (const int64_t k : {4096, 5120}) {
    for (const int64_t rows : {1, 45, 1700}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << k);
      const Case all(dtype(), rows, k, 32, {}, {}, false, source, 0);
      all.expect_true(all.run(isa()));
    }
  }
}

TEST_P(Product, AgreesWhereDeepRowsMeetManyPanelsForEveryBlockOfTheirDepth) {
  const std::vector<TermCase> terms = {{{0, 19}, 16, 0, 1300}, {{19, 44}, 5, 1024, 64}};
  for (const int64_t padding : {0, 3}) {  // rows that are copied, block by block or whole, and rows that are read in place
    SCOPED_TRACE(padding);
    const Case all(dtype(), 45, 4096, 1300, terms, {{3, 30}}, true, source, padding);
    all.expect_true(all.run(isa()));
  }
}

TEST_P(Product, AddsTermsOfManyJobsBiasAndResidual) {
  // Ranks that differ, jobs of one row, rows of no job, terms on some columns, two terms on the same rows,
  // odd borders.
  std::vector<TermCase> terms = {{{0, 40}, 16, 0, 128},  {{40, 41}, 8, 0, 128},   {{41, 42}, 64, 0, 128},
                                 {{42, 83}, 1, 0, 64},   {{42, 83}, 33, 64, 64},  {{50, 60}, 16, 32, 90},
                                 {{83, 83}, 16, 0, 128}, {{90, 107}, 40, 96, 64}, {{107, 140}, 4, 0, 160}};
  const Case all(dtype(), 141, 64, 160, terms, {{0, 30}, {41, 100}}, true, source);
  all.expect_true(all.run(isa()));
}

TEST_P(Product, AddsTermsWhereTheFrozenMatrixHasNoDepth) {
  const Case all(dtype(), 20, 0, 64, {{{0, 9}, 8, 0, 64}, {{9, 20}, 16, 32, 32}}, {{5, 20}}, true, source);
  all.expect_true(all.run(isa()));
}

TEST_P(Product, WritesNothingWithoutRows) {
  const Case all(dtype(), 0, 64, 64, {}, {}, false, source);
  all.run(isa());
}

TEST_P(Product, LeavesWhatLiesBesideTheColumnsOfY) {
  const Case all(dtype(), 19, 64, 45, {}, {}, false, source);
  const Matrix y = all.run(isa());
  for (int64_t i = 0; i < y.rows(); ++i) {
    for (const char* at = y.row(i) + y.row_bytes(); at < y.row(i) + y.stride() * bytes_of(y.dtype()); ++at)
      ASSERT_EQ(*at, '\xff');
  }
}

TEST_P(Product, AddsAResidualThatIsTheOutputItself) {
  const Matrix x = Matrix::random(37, 96, dtype(), source);
  const PackedMatrix b = pack(Matrix::random(96, 64, dtype(), source), isa());
  const Matrix before = Matrix::random(37, 64, dtype(), source);
  const std::vector<RowRange> rows = {{0, 37}};
  ProductOptions options;
  options.residual_rows = rows;
  options.residual = before.data();
  options.residual_stride = before.stride();
  Matrix apart(37, 64, dtype());
  product(isa(), x.data(), x.stride(), 37, b, apart.data(), apart.stride(), options);
  Matrix inside = before;
  options.residual = inside.data();
  product(isa(), x.data(), x.stride(), 37, b, inside.data(), inside.stride(), options);
  EXPECT_EQ(apart.bytes(), inside.bytes());
}

TEST_P(Product, IsNotRoundedWhereItIsAddedToAStreamInF32) {
  for (const auto& [rows, k, n] : {std::tuple<int64_t, int64_t, int64_t>{1, 32, 32}, {37, 96, 70}, {45, 1536, 64}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << k << " x " << n);
    Case all(dtype(), rows, k, n, {{{0, rows}, 16, 0, n}}, {}, true, source);
    const Matrix rounded = all.run(isa()), plain = all.run(isa(), std::nullopt, true);
    all.residual = Matrix::random(rows, n, DType::f32, source, 3);
    all.residual_rows = {{0, 20 * rows / 37}, {rows - 1, rows}};
    const Matrix added = all.run(isa(), std::nullopt, true);
    for (int64_t i = 0; i < rows; ++i) {
      const bool has_residual = i < all.residual_rows.front().end || i == rows - 1;
      for (int64_t j = 0; j < n; ++j) {
        const auto value = static_cast<float>(plain.at(i, j));
        ASSERT_EQ(rounded.at(i, j), dtype() == DType::bf16 ? widen(narrow(value)) : value) << i << " " << j;
        ASSERT_EQ(added.at(i, j), has_residual ? value + static_cast<float>(all.residual.at(i, j)) : value) << i << " " << j;
      }
    }
  }
}

TEST_P(Product, GivesARowTheSameBitsAloneAndInCompany) {
  const std::vector<TermCase> terms = {
      {{0, 40}, 16, 0, 128}, {{40, 77}, 24, 0, 128}, {{77, 150}, 64, 32, 96}};
  for (const int64_t k : {96, 100, 1536}) {
    const Case all(dtype(), 150, k, 128, terms, {{0, 77}}, true, source);
    const Matrix together = all.run(isa());
    for (const RowRange part :
         {RowRange{0, 1}, {39, 40}, {40, 77}, {77, 150}, {13, 99}, {149, 150}, {30, 61}}) {
      const Matrix alone = all.run(isa(), part);
      for (int64_t i = part.begin; i < part.end; ++i) {
        ASSERT_EQ(
            std::memcmp(alone.row(i - part.begin), together.row(i), static_cast<size_t>(alone.row_bytes())),
            0)
            << "row " << i << " of " << part.begin << " to " << part.end;
      }
    }
  }
}

TEST_P(Product, ReadsAndWritesNothingOutsideItsOperands) {
  for (const int64_t rows : {1, 15, 33}) {
    for (const int64_t k : {64, 70}) {
      for (const int64_t n : {64, 75}) {
        const Matrix x = Matrix::random(rows, k, dtype(), source);
        const Matrix left = Matrix::random(rows, 32, dtype(), source);
        FencedCopy fenced_x(x), s(left), residual(Matrix::random(rows, n, dtype(), source)),
            bias(Matrix::random(1, n, dtype(), source));
        FencedCopy y(Matrix(rows, n, dtype()));
        const PackedMatrix b = pack(Matrix::random(k, n, dtype(), source), isa());
        const PackedMatrix factor = pack(Matrix::random(32, n, dtype(), source), isa());
        const std::vector<LowRankTerm> terms = {{{0, rows}, 0, n, s.data(), 32, &factor}};
        const std::vector<RowRange> all = {{0, rows}};
        product(isa(), fenced_x.data(), k, rows, b, y.data(), n,
                {terms, bias.data(), residual.data(), n, all});
      }
    }
  }
}

TEST_P(Product, GivesTheSameBitsForEveryThreadCount) {
  const Case all(dtype(), 150, 640, 224, {{{0, 40}, 16, 0, 224}, {{40, 77}, 24, 0, 128}}, {{0, 77}}, true,
                 source);
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const Matrix one = all.run(isa());
  for (const int threads : {2, 3, 5, 16}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(one.bytes(), all.run(isa()).bytes()) << threads;
  }
  omp_set_num_threads(before);
}

TEST_P(Product, KeepsNaNAndInfinityInTheRowsOfTheirJob) {
  const float bad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()};
  for (const float value : bad) {
    for (int place = 0; place < 3; ++place) {
      Case all(dtype(), 50, 64, 64, {{{0, 21}, 16, 0, 64}, {{21, 38}, 16, 0, 64}, {{38, 50}, 16, 0, 64}}, {},
               false, source);
      const Matrix clean = all.run(isa());
      if (place == 0) all.x.set(25, 3, value);
      if (place == 1) all.s[1].set(4, 5, value);
      if (place == 2) all.factors[1].set(2, 7, value);
      const Matrix spoilt = all.run(isa());
      for (int64_t i = 0; i < 50; ++i) {
        if (i >= 21 && i < 38) continue;
        ASSERT_EQ(std::memcmp(clean.row(i), spoilt.row(i), static_cast<size_t>(clean.row_bytes())), 0)
            << "row " << i;
      }
      EXPECT_FALSE(std::isfinite(spoilt.at(25, 7)));
    }
  }
}

}  // namespace
}  // namespace cotune::kernels
