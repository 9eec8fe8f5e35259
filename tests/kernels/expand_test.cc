#include "kernels/expand.h"

#include <omp.h>

#include <limits>

#include "kernels/column_sums.h"
#include "kernels/product_reference.h"

namespace cotune::kernels {
namespace {

/// Jobs of different ranks; the first has two sites of the same rows, and of those not one after another.
struct Case {
  RowRange rows;
  int64_t rank;
  bool drops;
  bool biased;
};

class Expand : public OnEveryIsa {
 protected:
  static constexpr int64_t rows = 130, columns = 96;

  const std::vector<Case> cases = {{{0, 40}, 16, false, true},
                                   {{40, 41}, 8, true, false},
                                   {{41, 97}, 70, false, false},
                                   {{97, 130}, 5, true, false},
                                   {{0, 40}, 33, true, false}};

  void SetUp() override {
    for (const Case& each : cases) {
      factors.push_back(Matrix::random(each.rank, columns, dtype(), source));
      packed.push_back(pack(factors.back(), isa()));
      s.push_back(Matrix::random(each.rows.count(), (each.rank + 31) / 32 * 32, dtype(), source));
      sites.push_back({uint64_t(sites.size() * 17 + 3), each.drops ? 0.3f : 0.f});
    }
    for (int64_t row = 0; row < rows; ++row) {
      examples.push_back(uint64_t(row / 9));
      positions.push_back(int32_t(row % 9));
    }
    for (int64_t c = 0; c < columns; ++c) bias.push_back(float(c) / 10 - 3);
  }

  ExpandGroup group(size_t i) const {
    return {.rows = cases[i].rows,
            .s = s[i].data(),
            .s_stride = s[i].stride(),
            .b = &packed[i],
            .dropout = cases[i].drops ? &sites[i] : nullptr,
            .bias = cases[i].biased ? bias.data() : nullptr};
  }
  ExpandOptions options() const { return {.example_keys = examples.data(), .positions = positions.data()}; }
  Matrix expanded(const std::vector<size_t>& which, Matrix y) const {
    std::vector<ExpandGroup> groups;
    for (const size_t i : which) groups.push_back(group(i));
    expand_add(isa(), dtype(), y.data(), y.stride(), groups, options());
    return y;
  }

  std::vector<Matrix> factors, s;
  std::vector<PackedMatrix> packed;
  std::vector<DropoutSite> sites;
  std::vector<uint64_t> examples;
  std::vector<int32_t> positions;
  std::vector<float> bias;
};
INSTANTIATE_TEST_SUITE_P(Machine, Expand, testing::ValuesIn(machine_isas()), isa_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Expand);

TEST_P(Expand, AddsEveryJobsMaskedProductAndBias) {
  const Matrix start = Matrix::random(rows, columns, dtype(), source, 3);
  const Matrix y = expanded({0, 1, 2, 3, 4}, start);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t c = 0; c < columns; ++c) {
      double sum = start.at(row, c), magnitude = std::abs(sum);
      for (size_t i = 0; i < cases.size(); ++i) {
        if (row < cases[i].rows.begin || row >= cases[i].rows.end) continue;
        double part = 0, size = 0;
        for (int64_t k = 0; k < cases[i].rank; ++k) {
          const double term = s[i].at(row - cases[i].rows.begin, k) * factors[i].at(k, c);
          part += term;
          size += std::abs(term);
        }
        if (cases[i].drops)
          part *= dropout_keeps(sites[i], examples[size_t(row)], positions[size_t(row)], c) ? 1 / 0.7 : 0;
        if (cases[i].biased) part += bias[size_t(c)];
        sum += part;
        magnitude += size;
      }
      // The product is rounded, and so is each of at most two sums.
      ASSERT_NEAR(y.at(row, c), sum, 4 * tolerance(dtype(), magnitude, magnitude)) << row << " " << c;
    }
  }
}

TEST_P(Expand, AddsTheResidualWhereThereIsOne) {
  const Matrix start = Matrix::random(rows, columns, dtype(), source),
               residual = Matrix::random(rows, columns, dtype(), source, 5);
  const Matrix added = expanded({0, 2}, Matrix(rows, columns, dtype()));
  Matrix y = start;
  ExpandOptions with_residual = options();
  with_residual.residual = residual.data();
  with_residual.residual_stride = residual.stride();
  const std::vector<ExpandGroup> groups = {group(0), group(2)};
  expand_add(isa(), dtype(), y.data(), y.stride(), groups, with_residual);
  for (int64_t row = 0; row < rows; ++row) {
    const bool of_a_group = row < 40 || (row >= 41 && row < 97);
    for (int64_t c = 0; c < columns; ++c) {
      if (!of_a_group) {
        ASSERT_EQ(y.at(row, c), start.at(row, c));
        continue;
      }
      const double sum = residual.at(row, c) + start.at(row, c) + added.at(row, c);
      const double magnitude =
          std::abs(residual.at(row, c)) + std::abs(start.at(row, c)) + std::abs(added.at(row, c));
      ASSERT_NEAR(y.at(row, c), sum, 2 * tolerance(dtype(), magnitude, magnitude)) << row << " " << c;
    }
  }
}

TEST_P(Expand, AddsToAStreamInF32WithoutRounding) {
  const Matrix start = Matrix::random(rows, columns, DType::f32, source), residual = Matrix::random(rows, columns, DType::f32, source, 5);
  const Matrix rounded = expanded({0, 2}, Matrix(rows, columns, dtype()));  // one group a row: what it adds, in the dtype of the call
  Matrix y = start, added(rows, columns, DType::f32);
  ExpandOptions with_residual = options();
  with_residual.residual = residual.data();
  with_residual.residual_stride = residual.stride();
  ExpandOptions without = options();
  with_residual.wide = without.wide = true;
  const std::vector<ExpandGroup> groups = {group(0), group(2)};
  expand_add(isa(), dtype(), added.data(), added.stride(), groups, without);
  expand_add(isa(), dtype(), y.data(), y.stride(), groups, with_residual);
  for (int64_t row = 0; row < rows; ++row) {
    const bool of_a_group = row < 40 || (row >= 41 && row < 97);
    for (int64_t c = 0; c < columns; ++c) {
      const double sum = of_a_group ? residual.at(row, c) + start.at(row, c) + added.at(row, c) : start.at(row, c);
      ASSERT_NEAR(y.at(row, c), sum, 1e-5) << row << " " << c;
      ASSERT_NEAR(added.at(row, c), rounded.at(row, c), tolerance(dtype(), rounded.at(row, c), 0)) << row << " " << c;
    }
  }
}

TEST_P(Expand, BitsDoNotDependOnThreadsOrNeighbours) {
  const Matrix start = Matrix::random(rows, columns, dtype(), source);
  const int before = omp_get_max_threads();
  const Matrix together = expanded({0, 1, 2, 3, 4}, start);
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(expanded({0, 1, 2, 3, 4}, start).bytes(), together.bytes()) << threads;
  }
  omp_set_num_threads(before);
  Matrix alone = start;
  for (const std::vector<size_t>& job : {std::vector<size_t>{3}, {0, 4}, {2}, {1}})
    alone = expanded(job, alone);
  EXPECT_EQ(alone.bytes(), together.bytes());
}

TEST_P(Expand, KeepsWhatIsNotANumberInItsRows) {
  s[2].set(7, 3, std::numeric_limits<float>::quiet_NaN());
  for (int64_t k = 0; k < cases[3].rank; ++k) factors[3].set(k, 11, std::numeric_limits<float>::infinity());
  packed[3].repack({factors[3].data(), factors[3].stride(), dtype(), MatrixView::Order::rows});
  const Matrix y = expanded({0, 1, 2, 3, 4}, Matrix::random(rows, columns, dtype(), source));
  for (int64_t row = 0; row < 97; ++row) {
    for (int64_t c = 0; c < columns; ++c)
      ASSERT_EQ(std::isfinite(y.at(row, c)), row != 41 + 7) << row << " " << c;
  }
}

class ColumnSums : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!cpu_features().avx2) GTEST_SKIP() << "this machine lacks the instructions";
  }
};
INSTANTIATE_TEST_SUITE_P(DTypes, ColumnSums, testing::Values(DType::f32, DType::bf16));

TEST_P(ColumnSums, AreThoseOfEveryAtomAddedToItsGradientInAnyCompany) {
  const DType dtype = GetParam();
  std::mt19937 source{3};
  const Matrix wide = Matrix::random(300, 150, dtype, source, 2),
               narrow = Matrix::random(90, 5, dtype, source, 27);
  std::vector<std::vector<float>> gradients = {std::vector<float>(150, 1.f), std::vector<float>(5, 2.f),
                                               std::vector<float>(150)};
  struct Part {
    const Matrix* matrix;
    RowRange rows;
    size_t gradient;
  };
  const std::vector<Part> parts = {
      {&wide, {256, 300}, 0}, {&wide, {0, 256}, 0}, {&narrow, {0, 90}, 1}, {&wide, {5, 5}, 2}};
  const auto add = [&](size_t begin, size_t end, std::vector<std::vector<float>>& to) {
    std::vector<ColumnSum> sums;
    for (size_t i = begin; i < end; ++i) {
      const Part& part = parts[i];
      sums.push_back({part.matrix->row(part.rows.begin), part.matrix->stride(), part.rows.count(),
                      part.matrix->columns(), to[part.gradient].data()});
    }
    column_sums(dtype, sums);
  };
  std::vector<std::vector<float>> alone = gradients, expected_of = gradients;
  add(0, parts.size(), gradients);
  add(2, 3, alone);
  add(0, 2, alone);
  EXPECT_EQ(alone, gradients);
  for (size_t g = 0; g < gradients.size(); ++g) {
    for (size_t j = 0; j < gradients[g].size(); ++j) {
      double sum = expected_of[g][j], magnitude = std::abs(sum);
      for (const Part& part : parts) {
        if (part.gradient != g) continue;
        for (int64_t row = part.rows.begin; row < part.rows.end; ++row) {
          sum += part.matrix->at(row, int64_t(j));
          magnitude += std::abs(part.matrix->at(row, int64_t(j)));
        }
      }
      EXPECT_NEAR(gradients[g][j], sum, 1e-6 * magnitude) << g << " " << j;
    }
  }
}

}  // namespace
}  // namespace cotune::kernels
