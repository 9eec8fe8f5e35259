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

class SparseDeltas : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { COTUNE_NEEDS(GetParam()); }
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
      sparse_delta_forward(dtype, random.delta, random.values.data(), tokens, x.data(), x_stride, y.data(), y_stride);
      sparse_delta_input_gradient(dtype, random.delta, random.values.data(), tokens, dy.data(), y_stride, dx.data(),
                                  x_stride);
      sparse_delta_value_gradient(dtype, random.delta, tokens, x.data(), x_stride, dy.data(), y_stride, dvalues.data());
      expect_rounded_once(y, y_expected, tokens * y_stride, dtype);
      expect_rounded_once(dx, dx_expected, tokens * x_stride, dtype);
      EXPECT_LT(relative_distance(dvalues, dvalues_expected, int64_t(dvalues.size())), 1e-6);
    }
  }
}

TEST_P(SparseDeltas, BitsDoNotDependOnThreadsOrNeighbours) {
  const DType dtype = GetParam();
  const int before = omp_get_max_threads();
  const RandomDelta random(64, 80, 0.2, 6);
  const int64_t tokens = 300;
  const Values x = Values::normal(dtype, tokens * 64, 1), dy = Values::normal(dtype, tokens * 80, 2);
  std::vector<Values> ys, dxs;
  std::vector<std::vector<float>> gradients;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    ys.push_back(Values::normal(dtype, tokens * 80, 3));
    dxs.push_back(Values::normal(dtype, tokens * 64, 4));
    gradients.emplace_back(random.values.size());
    sparse_delta_forward(dtype, random.delta, random.values.data(), tokens, x.data(), 64, ys.back().data(), 80);
    sparse_delta_input_gradient(dtype, random.delta, random.values.data(), tokens, dy.data(), 80, dxs.back().data(), 64);
    sparse_delta_value_gradient(dtype, random.delta, tokens, x.data(), 64, dy.data(), 80, gradients.back().data());
    EXPECT_TRUE(ys.back() == ys[0]);
    EXPECT_TRUE(dxs.back() == dxs[0]);
    EXPECT_EQ(gradients.back(), gradients[0]);
  }
  omp_set_num_threads(before);
  Values alone = Values::normal(dtype, tokens * 80, 3);
  sparse_delta_forward(dtype, random.delta, random.values.data(), 10, x.at(37 * 64), 64, alone.at(37 * 80), 80);
  for (int64_t i = 37 * 80; i < 47 * 80; ++i) ASSERT_EQ(alone[i], ys[0][i]);
}

}  // namespace
}  // namespace cotune::kernels
