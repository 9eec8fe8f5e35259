#include <gtest/gtest.h>
#include <omp.h>

#include <cstring>
#include <limits>

#include "kernels/low_rank.h"
#include "kernels/product_reference.h"

namespace cotune::kernels {
namespace {

struct GroupCase {
  RowRange rows;
  int64_t rank;
  float scale;
};

std::vector<Matrix> run(Isa isa, const Matrix& x, const std::vector<GroupCase>& cases,
                        const std::vector<Matrix>& factors) {
  std::vector<PackedMatrix> packed;
  std::vector<Matrix> results;
  for (size_t i = 0; i < cases.size(); ++i) {
    packed.push_back(pack(factors[i]));
    results.emplace_back(cases[i].rows.count(), packed[i].padded_n(), x.dtype(), 8);
  }
  std::vector<ShrinkGroup> groups;
  for (size_t i = 0; i < cases.size(); ++i) {
    groups.push_back({cases[i].rows, &packed[i], results[i].data(), results[i].stride(), cases[i].scale});
  }
  shrink(isa, x.data(), x.stride(), groups);
  return results;
}

class Shrink : public OnEveryIsa {
 protected:
  std::vector<Matrix> random_factors(int64_t k, const std::vector<GroupCase>& cases) {
    std::vector<Matrix> factors;
    for (const GroupCase& group : cases) factors.push_back(Matrix::random(k, group.rank, dtype(), source));
    return factors;
  }
  const std::vector<GroupCase> cases = {{{0, 40}, 16, 1},  {{40, 41}, 8, 2},      {{41, 42}, 64, 0.5F},
                                        {{42, 42}, 16, 1}, {{50, 113}, 33, 0.1F}, {{50, 113}, 48, 1.5F},
                                        {{113, 130}, 1, 3}};
};
INSTANTIATE_TEST_SUITE_P(Machine, Shrink, testing::ValuesIn(machine_isas()), isa_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Shrink);

TEST_P(Shrink, AgreesWithDoublePrecisionForJobsOfDifferentRanks) {
  for (const int64_t k : {1, 64, 100, 1536, 2500}) {
    SCOPED_TRACE(k);
    const Matrix x = Matrix::random(130, k, dtype(), source, 3);
    const std::vector<Matrix> factors = random_factors(k, cases);
    const std::vector<Matrix> results = run(isa(), x, cases, factors);
    for (size_t g = 0; g < cases.size(); ++g) {
      for (int64_t i = 0; i < cases[g].rows.count(); ++i) {
        for (int64_t j = 0; j < results[g].columns(); ++j) {
          double sum = 0, magnitude = 0;
          for (int64_t l = 0; l < k && j < cases[g].rank; ++l) {
            const double part = cases[g].scale * x.at(cases[g].rows.begin + i, l) * factors[g].at(l, j);
            sum += part;
            magnitude += std::abs(part);
          }
          ASSERT_NEAR(results[g].at(i, j), sum, tolerance(dtype(), sum, magnitude))
              << "group " << g << " row " << i << " column " << j;
        }
      }
    }
  }
}

TEST_P(Shrink, WritesZeroBesideTheRankEvenWhereXIsNotFinite) {
  Matrix x = Matrix::random(20, 64, dtype(), source);
  x.set(3, 3, std::numeric_limits<float>::quiet_NaN());
  const std::vector<GroupCase> one = {{{0, 20}, 5, 1}};
  const std::vector<Matrix> results = run(isa(), x, one, random_factors(64, one));
  EXPECT_TRUE(std::isnan(results[0].at(3, 0)));
  EXPECT_FALSE(std::isnan(results[0].at(4, 0)));
  for (int64_t j = 5; j < 32; ++j) EXPECT_EQ(results[0].at(3, j), 0) << j;
}

TEST_P(Shrink, GivesTheSameBitsAloneInCompanyAndForEveryThreadCount) {
  const Matrix x = Matrix::random(130, 1536, dtype(), source);
  const std::vector<Matrix> factors = random_factors(1536, cases);
  const int before = omp_get_max_threads();
  const std::vector<Matrix> together = run(isa(), x, cases, factors);
  for (const int threads : {1, 2, 7}) {
    omp_set_num_threads(threads);
    const std::vector<Matrix> again = run(isa(), x, cases, factors);
    for (size_t g = 0; g < cases.size(); ++g) EXPECT_EQ(again[g].bytes(), together[g].bytes());
  }
  omp_set_num_threads(before);
  for (size_t g = 0; g < cases.size(); ++g) {
    for (int64_t i = 0; i < cases[g].rows.count(); ++i) {
      const int64_t row = cases[g].rows.begin + i;
      const std::vector<Matrix> alone =
          run(isa(), x, {{{row, row + 1}, cases[g].rank, cases[g].scale}}, {factors[g]});
      ASSERT_EQ(std::memcmp(alone[0].row(0), together[g].row(i), static_cast<size_t>(alone[0].row_bytes())),
                0)
          << row;
    }
  }
}

TEST_P(Shrink, ReadsAndWritesNothingOutsideItsOperands) {
  for (const int64_t rows : {1, 15, 33}) {
    for (const int64_t k : {64, 70}) {
      FencedCopy x(Matrix::random(rows, k, dtype(), source)), s(Matrix(rows, 32, dtype()));
      const PackedMatrix a = pack(Matrix::random(k, 20, dtype(), source));
      const std::vector<ShrinkGroup> groups = {{{0, rows}, &a, s.data(), 32, 1}};
      shrink(isa(), x.data(), k, groups);
    }
  }
}

TEST_P(Shrink, AcceptsNoGroups) {
  shrink(isa(), nullptr, 0, {});
}

}  // namespace
}  // namespace cotune::kernels
