#include "kernels/cross_entropy.h"

#include <gtest/gtest.h>

#include "kernels/reference_values.h"

namespace cotune::kernels {
namespace {

struct Case {
  DType logits;
  DType gradient;
};

class CrossEntropy : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    COTUNE_NEEDS_VECTORS;
  }
};

INSTANTIATE_TEST_SUITE_P(DTypes, CrossEntropy,
                         testing::Values(Case{DType::f32, DType::f32}, Case{DType::bf16, DType::bf16},
                                         Case{DType::f32, DType::bf16}));

TEST_P(CrossEntropy, LossAndGradientAgreeWithTheReference) {
  const auto [in, out] = GetParam();
  for (const auto& [rows, vocabulary] : {std::pair<int64_t, int64_t>{0, 10}, {1, 1}, {3, 15}, {9, 1003}, {5, 49152}}) {
    const int64_t stride = vocabulary + 7;
    Values logits = Values::normal(in, rows * stride, 1, 5);
    std::vector<int32_t> labels(rows);
    std::vector<float> scale(rows), loss(rows), loss_alone(rows);
    for (int64_t r = 0; r < rows; ++r) {
      labels[r] = int32_t(uniform_below(2, uint64_t(r), uint64_t(vocabulary)));
      scale[r] = 0.25f * float(r + 1);
    }
    if (rows > 2) labels[2] = -100;
    std::vector<double> expected(rows * vocabulary), expected_loss(rows);
    for (int64_t r = 0; r < rows; ++r) {
      if (labels[r] < 0) continue;
      double highest = -1e300, sum = 0;
      for (int64_t c = 0; c < vocabulary; ++c) highest = std::max(highest, logits[r * stride + c]);
      for (int64_t c = 0; c < vocabulary; ++c) sum += std::exp(logits[r * stride + c] - highest);
      expected_loss[r] = highest + std::log(sum) - logits[r * stride + labels[r]];
      for (int64_t c = 0; c < vocabulary; ++c) {
        const double p = std::exp(logits[r * stride + c] - highest) / sum;
        expected[r * vocabulary + c] = (p - (c == labels[r] ? 1 : 0)) * double(scale[r]);
      }
    }
    softmax_cross_entropy_loss(in, logits.data(), stride, rows, vocabulary, labels.data(), loss_alone.data());
    Values apart(out, rows * stride);
    softmax_cross_entropy(in, logits.data(), stride, rows, vocabulary, labels.data(), scale.data(), loss.data(), out,
                          apart.data(), stride);
    EXPECT_EQ(loss, loss_alone);
    const int64_t in_place_stride = in == out ? stride : 2 * stride;
    softmax_cross_entropy(in, logits.data(), stride, rows, vocabulary, labels.data(), scale.data(), loss.data(), out,
                          logits.data(), in_place_stride);
    EXPECT_EQ(loss, loss_alone);
    Values got(out, rows * vocabulary);
    for (int64_t r = 0; r < rows; ++r) {
      EXPECT_NEAR(loss[r], expected_loss[r], 2e-6 * (1 + expected_loss[r]));
      for (int64_t c = 0; c < vocabulary; ++c) got.set(r * vocabulary + c, apart[r * stride + c]);
      EXPECT_EQ(std::memcmp(apart.at(r * stride), static_cast<char*>(logits.data()) + r * in_place_stride * bytes_of(out),
                            size_t(vocabulary * bytes_of(out))), 0);
    }
    // z − max is rounded in f32: 2e-6 of a probability when they are 40 apart.
    expect_rounded_once(got, expected, rows * vocabulary, out, 2e-6);
  }
}

TEST(CrossEntropy, HugeLogitsDoNotOverflow) {
  COTUNE_NEEDS_VECTORS;
  std::vector<float> logits = {1e30f, -1e30f, 1e30f};
  const int32_t label = 0;
  const float scale = 1;
  float loss = 0;
  softmax_cross_entropy(DType::f32, logits.data(), 3, 1, 3, &label, &scale, &loss, DType::f32, logits.data(), 3);
  EXPECT_TRUE(std::isfinite(loss));
  EXPECT_FLOAT_EQ(logits[0], -0.5f);
  EXPECT_FLOAT_EQ(logits[1], 0.f);
  EXPECT_FLOAT_EQ(logits[2], 0.5f);
}

}  // namespace
}  // namespace cotune::kernels
