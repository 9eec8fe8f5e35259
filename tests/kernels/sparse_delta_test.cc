#include "kernels/sparse_delta.h"

#include <gtest/gtest.h>
#include <omp.h>

#include "kernels/reference_values.h"

namespace cotune::kernels {
namespace {

/// A random Δ, dense in double as well.
struct RandomDelta {
  RandomDelta(int64_t inputs, int64_t outputs, double density, uint64_t key) : dense(inputs * outputs) {
    offsets.push_back(0);
    for (int64_t j = 0; j < outputs; ++j) {
      for (int64_t i = 0; i < inputs; ++i) {
        if (uniform(key, uint64_t(j * inputs + i)) >= density) continue;
        rows.push_back(int32_t(i));
        values.push_back(float(normal(key + 1, values.size())));
        dense[i * outputs + j] = values.back();
      }
      offsets.push_back(int64_t(values.size()));
    }
    delta = {inputs, outputs, offsets.data(), rows.data()};
  }
  RandomDelta(const RandomDelta&) = delete;

  std::vector<double> dense;
  std::vector<int64_t> offsets;
  std::vector<int32_t> rows;
  std::vector<float> values;
  SparseDelta delta;
};

/// One group: all tokens, whole rows.
std::vector<SparseRows> one_group(const RandomDelta& random, RowRange rows) {
  return {{random.delta, random.values.data(), rows}};
}

class SparseDeltas : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { COTUNE_NEEDS_VECTORS; }
};

INSTANTIATE_TEST_SUITE_P(DTypes, SparseDeltas, testing::Values(DType::f32, DType::bf16));

TEST_P(SparseDeltas, AgreeWithTheDenseReference) {
  const DType dtype = GetParam();
  for (const auto& [inputs, outputs, density] : {std::tuple<int64_t, int64_t, double>{1, 1, 1.0},
                                                 {40, 33, 0.1}, {70, 90, 0.0}, {96, 200, 0.02}, {17, 16, 1.0}}) {
    const RandomDelta random(inputs, outputs, density, 5);
    for (const int64_t tokens : {0, 1, 63, 64, 150}) {
      const int64_t x_stride = inputs + 5, y_stride = outputs + 2;
      const Values x = Values::normal(dtype, tokens * x_stride, 1), dy = Values::normal(dtype, tokens * y_stride, 2);
      Values y = Values::normal(dtype, tokens * y_stride, 3), dx = Values::normal(dtype, tokens * x_stride, 4);
      std::vector<float> dvalues(random.values.size(), 0.5f);
      std::vector<double> y_expected(tokens * y_stride), dx_expected(tokens * x_stride), dvalues_expected;
      for (int64_t i = 0; i < tokens * y_stride; ++i) y_expected[i] = y[i];
      for (int64_t i = 0; i < tokens * x_stride; ++i) dx_expected[i] = dx[i];
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t i = 0; i < inputs; ++i) {
          for (int64_t j = 0; j < outputs; ++j) {
            y_expected[t * y_stride + j] += x[t * x_stride + i] * random.dense[i * outputs + j];
            dx_expected[t * x_stride + i] += dy[t * y_stride + j] * random.dense[i * outputs + j];
          }
        }
      }
      for (int64_t j = 0; j < outputs; ++j) {
        for (int64_t e = random.offsets[j]; e < random.offsets[j + 1]; ++e) {
          double sum = 0.5;
          for (int64_t t = 0; t < tokens; ++t) sum += x[t * x_stride + random.rows[e]] * dy[t * y_stride + j];
          dvalues_expected.push_back(sum);
        }
      }
      const std::vector<SparseRows> groups = one_group(random, {0, tokens});
      const std::vector<SparseValueGradient> sums = {{random.delta, {0, tokens}, 0, dvalues.data()}};
      Values wide_y(DType::f32, tokens * y_stride);
      for (int64_t i = 0; i < tokens * y_stride; ++i) wide_y.set(i, y[i]);
      sparse_delta_forward(dtype, groups, {x.data(), x_stride, wide_y.data(), y_stride, true});
      sparse_delta_forward(dtype, groups, {x.data(), x_stride, y.data(), y_stride});
      EXPECT_LT(relative_distance(wide_y, y_expected, tokens * y_stride), 1e-6);
      sparse_delta_input_gradient(dtype, groups, {dy.data(), y_stride, dx.data(), x_stride});
      sparse_delta_value_gradient(dtype, sums, x.data(), x_stride, dy.data(), y_stride);
      expect_rounded_once(y, y_expected, tokens * y_stride, dtype);
      expect_rounded_once(dx, dx_expected, tokens * x_stride, dtype);
      EXPECT_LT(relative_distance(dvalues, dvalues_expected, int64_t(dvalues.size())), 1e-6);
    }
  }
}

TEST_P(SparseDeltas, BitsDoNotDependOnThreadsOrNeighbours) {
  const DType dtype = GetParam();
  const int before = omp_get_max_threads();
  // Three jobs; the first has two sites, which read one x, write columns of one y and add to one dx.
  const RandomDelta first(64, 48, 0.2, 6), second(64, 32, 0.1, 7), other(64, 80, 0.3, 8), third(64, 48, 0.2, 9);
  const std::vector<SparseRows> forward = {{first.delta, first.values.data(), {0, 130}, 0, 0},
                                           {other.delta, other.values.data(), {130, 229}, 0, 0},
                                           {third.delta, third.values.data(), {229, 300}, 0, 0},
                                           {second.delta, second.values.data(), {0, 130}, 0, 48}};
  std::vector<SparseRows> backward = forward;
  for (SparseRows& group : backward) std::swap(group.from_column, group.to_column);
  const int64_t tokens = 300;
  const Values x = Values::normal(dtype, tokens * 64, 1), dy = Values::normal(dtype, tokens * 80, 2);
  const Values y_start = Values::normal(dtype, tokens * 80, 3), dx_start = Values::normal(dtype, tokens * 64, 4);
  const auto gradients_of = [&](size_t only) {  // of every group, or of one alone
    std::vector<std::vector<float>> gradients;
    std::vector<SparseValueGradient> sums;
    for (size_t g = 0; g < forward.size(); ++g) {
      gradients.emplace_back(size_t(forward[g].delta.column_offsets[forward[g].delta.outputs]), 0.5f);
      const RowRange rows = forward[g].rows;
      if (only != forward.size() && only != g) continue;
      sums.push_back({forward[g].delta, {rows.begin + 70, rows.end}, forward[g].to_column, gradients.back().data()});
      sums.push_back({forward[g].delta, {rows.begin, rows.begin + 70}, forward[g].to_column, gradients.back().data()});
    }
    sparse_delta_value_gradient(dtype, sums, x.data(), 64, dy.data(), 80);
    return gradients;
  };
  std::vector<Values> ys, dxs;
  std::vector<std::vector<std::vector<float>>> gradients;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    ys.push_back(y_start);
    dxs.push_back(dx_start);
    sparse_delta_forward(dtype, forward, {x.data(), 64, ys.back().data(), 80});
    sparse_delta_input_gradient(dtype, backward, {dy.data(), 80, dxs.back().data(), 64});
    gradients.push_back(gradients_of(forward.size()));
    EXPECT_TRUE(ys.back() == ys[0]);
    EXPECT_TRUE(dxs.back() == dxs[0]);
    EXPECT_EQ(gradients.back(), gradients[0]);
  }
  omp_set_num_threads(before);
  // Every job alone; of the first, both sites.
  Values y = y_start, dx = dx_start;
  for (const std::vector<size_t>& job : {std::vector<size_t>{1}, {0, 3}, {2}}) {
    std::vector<SparseRows> own_forward, own_backward;
    for (const size_t g : job) {
      own_forward.push_back(forward[g]);
      own_backward.push_back(backward[g]);
      EXPECT_EQ(gradients_of(g)[g], gradients[0][g]);
    }
    sparse_delta_forward(dtype, own_forward, {x.data(), 64, y.data(), 80});
    sparse_delta_input_gradient(dtype, own_backward, {dy.data(), 80, dx.data(), 64});
  }
  EXPECT_TRUE(y == ys[0]);
  EXPECT_TRUE(dx == dxs[0]);
}

}  // namespace
}  // namespace cotune::kernels
