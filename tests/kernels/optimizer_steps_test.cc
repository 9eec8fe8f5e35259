#include "kernels/optimizer_steps.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <limits>

#include "kernels/optimizer_blocks.h"
#include "kernels/reference_values.h"

namespace cotune::kernels {
namespace {

std::vector<float> normals(int64_t count, uint64_t key) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = float(normal(key, uint64_t(i)));
  return values;
}

TEST(Adamw, FollowsTorchOverManySteps) {
  const AdamwSettings settings = {.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
  for (const int64_t count : {0, 1, 37, 50000}) {
    std::vector<float> p = normals(count, 1), m(count), v(count);
    std::vector<double> p2(p.begin(), p.end()), m2(count), v2(count);
    for (int64_t step = 1; step <= 20; ++step) {
      const std::vector<float> g = normals(count, 100 + uint64_t(step));
      EXPECT_TRUE(adamw_step(settings, step, 0.5f, count, g.data(), p.data(), m.data(), v.data()));
      for (int64_t i = 0; i < count; ++i) {
        const double gradient = 0.5 * double(g[i]);
        p2[i] *= 1 - settings.lr * settings.weight_decay;
        m2[i] += (1 - settings.beta1) * (gradient - m2[i]);
        v2[i] = settings.beta2 * v2[i] + (1 - settings.beta2) * gradient * gradient;
        const double correction1 = 1 - std::pow(settings.beta1, step), correction2 = 1 - std::pow(settings.beta2, step);
        p2[i] -= settings.lr / correction1 * m2[i] / (std::sqrt(v2[i]) / std::sqrt(correction2) + settings.eps);
      }
    }
    for (int64_t i = 0; i < count; ++i) ASSERT_NEAR(p[i], p2[i], 2e-6 * (1 + std::abs(p2[i]))) << i;
    EXPECT_LT(relative_distance(m, m2, count), 1e-6);
    EXPECT_LT(relative_distance(v, v2, count), 1e-6);
  }
}

TEST(Adamw, TellsOfValuesThatAreNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN(), 1e30f}) {
    for (const int64_t at : {0, 12345, 20000}) {
      std::vector<float> g(20001, 1.f), p(20001), m(20001), v(20001);
      EXPECT_TRUE(adamw_step({.lr = 1e-3}, 1, 1, 20001, g.data(), p.data(), m.data(), v.data()));
      g[at] = bad;
      EXPECT_FALSE(adamw_step({.lr = 1e-3}, 2, 1, 20001, g.data(), p.data(), m.data(), v.data()));
    }
  }
}

TEST(Adamw, BitsDoNotDependOnThreads) {
  const int before = omp_get_max_threads();
  const int64_t count = 100003;
  const std::vector<float> g = normals(count, 3);
  std::vector<std::vector<float>> results;
  std::vector<double> sums;
  for (const int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    std::vector<float> p = normals(count, 4), m(count), v(count);
    adamw_step({.lr = 1e-3}, 1, 1, count, g.data(), p.data(), m.data(), v.data());
    results.push_back(p);
    sums.push_back(sum_of_squares(g.data(), count));
  }
  omp_set_num_threads(before);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

TEST(Sgd, FollowsTorch) {
  for (const SgdSettings& settings :
       {SgdSettings{.lr = 0.1}, SgdSettings{.lr = 0.1, .weight_decay = 0.01},
        SgdSettings{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01}, SgdSettings{.lr = 0.05, .momentum = 0.9}}) {
    const int64_t count = 1001;
    std::vector<float> p = normals(count, 1), buffer(count, 77.f);
    std::vector<double> p2(p.begin(), p.end()), b2(count);
    for (int64_t step = 1; step <= 5; ++step) {
      const std::vector<float> g = normals(count, 10 + uint64_t(step));
      EXPECT_TRUE(sgd_step(settings, step, 2.f, count, g.data(), p.data(),
                           settings.momentum == 0 ? nullptr : buffer.data()));
      for (int64_t i = 0; i < count; ++i) {
        double gradient = 2 * double(g[i]) + settings.weight_decay * p2[i];
        if (settings.momentum != 0) {
          b2[i] = step == 1 ? gradient : settings.momentum * b2[i] + gradient;
          gradient = b2[i];
        }
        p2[i] -= settings.lr * gradient;
      }
    }
    EXPECT_LT(relative_distance(p, p2, count), 1e-6);
  }
}

TEST(GradientNorm, SumsSquaresAndSeesWhatIsNotFinite) {
  for (const int64_t count : {0, 1, 15, 16, 100000}) {
    std::vector<float> g = normals(count, 8);
    double expected = 0;
    for (const float x : g) expected += double(x) * double(x);
    EXPECT_NEAR(sum_of_squares(g.data(), count), expected, 1e-12 * expected);
    if (count == 0) continue;
    g[count - 1] = 3e38f;
    EXPECT_TRUE(std::isfinite(sum_of_squares(g.data(), count)));
    g[count / 2] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(std::isfinite(sum_of_squares(g.data(), count)));
  }
}

TEST(OptimizerBlocks, AgreeOnVectorsAndOneByOne) {
  COTUNE_NEEDS_VECTORS;
  const AdamwScalars adamw{0.5F, 0.999F, 0.1F, 0.99F, 0.01F, 0.1F, 1e-8F, -3e-3F};
  const SgdScalars sgd{0.5F, 0.1F, 0.9F, 0.01F, false};
  for (const int64_t count : {1, 15, 16, 17, 1000}) {
    const std::vector<float> g = normals(count, 1);
    std::vector<std::vector<float>> stepped;
    std::vector<const OptimizerBlocks*> all{&optimizer_blocks_portable, &avx2::optimizer_blocks};
    if (cpu_features().avx512) all.push_back(&avx512::optimizer_blocks);
    for (const OptimizerBlocks* blocks : all) {
      std::vector<float> p = normals(count, 2), m = normals(count, 3), v(count, 0.5F), b = normals(count, 4), q = p;
      EXPECT_FALSE(blocks->adamw(adamw, count, g.data(), p.data(), m.data(), v.data()));
      EXPECT_FALSE(blocks->sgd(sgd, count, g.data(), q.data(), b.data()));
      for (const std::vector<float>& each : {p, m, v, b, q}) stepped.push_back(each);
    }
    for (size_t i = 5; i < stepped.size(); ++i) {
      const std::vector<float>& expected = stepped[i % 5];
      for (int64_t j = 0; j < count; ++j) ASSERT_NEAR(stepped[i][j], expected[j], 1e-6F * (1 + std::abs(expected[j]))) << i << " " << j;
    }
    for (const OptimizerBlocks* blocks : all) EXPECT_EQ(blocks->squares(g.data(), count), optimizer_blocks_portable.squares(g.data(), count));
  }
}

}  // namespace
}  // namespace cotune::kernels
