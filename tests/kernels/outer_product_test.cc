#include "kernels/outer_product.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <limits>

#include "kernels/product_reference.h"

namespace cotune::kernels {
namespace {

struct GroupCase {
  RowRange rows;
  int64_t left_columns;
  int gradient;
  float scale;
};

class OuterProducts : public OnEveryIsa {
 protected:
  // Atoms of one job one after another, three lefts over the same rows, one row, no rows, ranks that differ.
  const std::vector<GroupCase> cases = {
      {{0, 37}, 16, 0, 1},   {{37, 40}, 16, 0, 1}, {{41, 42}, 8, 1, 2},      {{42, 42}, 8, 1, 1},
      {{43, 300}, 64, 2, 1}, {{43, 300}, 5, 3, 1}, {{43, 300}, 33, 4, 0.5F}, {{300, 301}, 16, 0, 1},
      {{301, 333}, 0, 5, 1}, {{301, 333}, 1, 6, 1}};
  static constexpr int gradient_count = 7;
  static constexpr int64_t ranks[gradient_count] = {16, 8, 64, 5, 33, 0, 1};

  std::vector<Matrix> lefts() {
    std::vector<Matrix> result;
    for (const GroupCase& group : cases)
      result.push_back(Matrix::random(group.rows.count(), group.left_columns, dtype(), source, 3));
    return result;
  }

  std::vector<Matrix> gradients(int64_t columns) {
    std::vector<Matrix> result;
    for (const int64_t rank : ranks) result.push_back(Matrix::random(rank, columns, DType::f32, source, 2));
    return result;
  }

  void add(const Matrix& right, std::vector<Matrix>& left, std::vector<Matrix>& gradient,
           std::vector<size_t> which = {}, int64_t shift = 0) {
    std::vector<OuterGroup> groups;
    for (size_t i = 0; i < cases.size(); ++i) {
      if (!which.empty() && std::find(which.begin(), which.end(), i) == which.end()) continue;
      Matrix& target = gradient[static_cast<size_t>(cases[i].gradient)];
      groups.push_back({{cases[i].rows.begin - shift, cases[i].rows.end - shift},
                        left[i].data(),
                        left[i].stride(),
                        cases[i].left_columns,
                        static_cast<float*>(target.data()),
                        target.stride(),
                        cases[i].scale});
    }
    outer_products(isa(), dtype(), right.row(shift), right.stride(), right.columns(), groups);
  }
};
INSTANTIATE_TEST_SUITE_P(Machine, OuterProducts, testing::ValuesIn(machine_isas()), isa_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OuterProducts);

TEST_P(OuterProducts, AgreesWithDoublePrecision) {
  for (const int64_t columns : {1, 32, 100, 576}) {
    SCOPED_TRACE(columns);
    const Matrix right = Matrix::random(333, columns, dtype(), source, 3);
    std::vector<Matrix> left = lefts();
    std::vector<Matrix> sums = gradients(columns);
    const std::vector<Matrix> before = sums;
    add(right, left, sums);
    for (size_t g = 0; g < sums.size(); ++g) {
      for (int64_t i = 0; i < sums[g].rows(); ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          double sum = before[g].at(i, j), magnitude = std::abs(sum);
          for (size_t c = 0; c < cases.size(); ++c) {
            if (cases[c].gradient != static_cast<int>(g)) continue;
            for (int64_t t = cases[c].rows.begin; t < cases[c].rows.end; ++t) {
              const double part = cases[c].scale * left[c].at(t - cases[c].rows.begin, i) * right.at(t, j);
              sum += part;
              magnitude += std::abs(part);
            }
          }
          ASSERT_NEAR(sums[g].at(i, j), sum, tolerance(DType::f32, sum, magnitude))
              << "gradient " << g << " at " << i << ", " << j;
        }
      }
    }
  }
}

TEST_P(OuterProducts, SumsManyRows) {
  const Matrix right = Matrix::random(3001, 40, dtype(), source);
  const Matrix left = Matrix::random(3001, 3, dtype(), source);
  Matrix sums(3, 40, DType::f32);
  const std::vector<OuterGroup> groups = {
      {{0, 3001}, left.data(), left.stride(), 3, static_cast<float*>(sums.data()), 40, 1}};
  outer_products(isa(), dtype(), right.data(), right.stride(), 40, groups);
  for (int64_t i = 0; i < 3; ++i) {
    for (int64_t j = 0; j < 40; ++j) {
      double sum = 0;
      for (int64_t t = 0; t < 3001; ++t) sum += left.at(t, i) * right.at(t, j);
      ASSERT_NEAR(sums.at(i, j), sum, 1e-3);
    }
  }
}

TEST_P(OuterProducts, GivesTheSameBitsForEveryThreadCountAndAlone) {
  const Matrix right = Matrix::random(333, 100, dtype(), source);
  std::vector<Matrix> left = lefts();
  const std::vector<Matrix> start = gradients(100);
  std::vector<Matrix> together = start;
  add(right, left, together);
  const int before = omp_get_max_threads();
  for (const int threads : {1, 2, 5, 16}) {
    omp_set_num_threads(threads);
    std::vector<Matrix> again = start;
    add(right, left, again);
    for (int g = 0; g < gradient_count; ++g)
      EXPECT_EQ(again[static_cast<size_t>(g)].bytes(), together[static_cast<size_t>(g)].bytes());
  }
  omp_set_num_threads(before);
  std::vector<Matrix> alone = start;
  for (size_t g = 0; g < cases.size(); ++g) add(right, left, alone, {g}, cases[g].rows.begin);
  for (int g = 0; g < gradient_count; ++g)
    EXPECT_EQ(alone[static_cast<size_t>(g)].bytes(), together[static_cast<size_t>(g)].bytes()) << g;
}

TEST_P(OuterProducts, ReadsAndWritesNothingOutsideItsOperands) {
  for (const int64_t rows : {1, 15, 33}) {
    for (const int64_t rank : {1, 16, 21}) {
      for (const int64_t columns : {32, 45}) {
        FencedCopy right(Matrix::random(rows, columns, dtype(), source)),
            left(Matrix::random(rows, rank, dtype(), source));
        FencedCopy gradient(Matrix(rank, columns, DType::f32));
        const std::vector<OuterGroup> groups = {
            {{0, rows}, left.data(), rank, rank, static_cast<float*>(gradient.data()), columns, 1}};
        outer_products(isa(), dtype(), right.data(), columns, columns, groups);
      }
    }
  }
}

TEST_P(OuterProducts, KeepsNaNInTheGradientOfItsJob) {
  Matrix right = Matrix::random(333, 64, dtype(), source);
  std::vector<Matrix> left = lefts();
  right.set(41, 5, std::numeric_limits<float>::quiet_NaN());  // the only row of gradient 1
  right.set(40, 5, std::numeric_limits<float>::infinity());   // nobody's row
  std::vector<Matrix> sums = gradients(64);
  add(right, left, sums);
  for (int g = 0; g < gradient_count; ++g) {
    const Matrix& sum = sums[static_cast<size_t>(g)];
    if (sum.rows() == 0) continue;
    EXPECT_EQ(std::isfinite(sum.at(0, 5)), g != 1) << g;
  }
}

}  // namespace
}  // namespace cotune::kernels
