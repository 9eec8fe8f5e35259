#include <gtest/gtest.h>
#include <omp.h>

#include "kernels/reference_values.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/swiglu.h"

namespace cotune::kernels {
namespace {

class RowKernels : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { COTUNE_NEEDS_VECTORS; }
  DType dtype() const { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(DTypes, RowKernels, testing::Values(DType::f32, DType::bf16),
                         [](const auto& info) { return info.param == DType::f32 ? "f32" : "bf16"; });

TEST_P(RowKernels, RmsNormAndItsGradientAgreeWithTheReference) {
  const float eps = 1e-5f;
  for (const auto& [tokens, hidden] : {std::pair<int64_t, int64_t>{0, 64}, {1, 4}, {3, 17}, {5, 576}, {200, 1000}}) {
    const Values x = Values::normal(dtype(), tokens * hidden, 1, 3), dy = Values::normal(dtype(), tokens * hidden, 2);
    const Values residual = Values::normal(dtype(), tokens * hidden, 3);
    const Values weight = Values::normal(DType::f32, hidden, 4);
    std::vector<float> inverse_rms(tokens);
    Values y(dtype(), tokens * hidden), again = y, dx = y;
    const float* w = static_cast<const float*>(weight.data());
    rms_norm_forward(dtype(), x.data(), tokens, hidden, w, eps, dtype(), y.data(), inverse_rms.data());
    rms_norm_recompute(dtype(), x.data(), tokens, hidden, w, inverse_rms.data(), again.data());
    EXPECT_TRUE(again == y);
    rms_norm_backward(dtype(), dy.data(), x.data(), tokens, hidden, w, inverse_rms.data(), residual.data(), dx.data());

    std::vector<double> y_expected(tokens * hidden), dx_expected(tokens * hidden), dx_plain(tokens * hidden);
    for (int64_t t = 0; t < tokens; ++t) {
      double squares = 0, dot = 0;
      for (int64_t c = 0; c < hidden; ++c) {
        squares += x[t * hidden + c] * x[t * hidden + c];
        dot += weight[c] * dy[t * hidden + c] * x[t * hidden + c];
      }
      const double r = 1 / std::sqrt(squares / double(hidden) + double(eps));
      EXPECT_NEAR(inverse_rms[t], r, 1e-6 * r);
      for (int64_t c = 0; c < hidden; ++c) {
        const int64_t i = t * hidden + c;
        y_expected[i] = x[i] * r * weight[c];
        dx_plain[i] = r * weight[c] * dy[i] - x[i] * r * r * r * dot / double(hidden);
        dx_expected[i] = dx_plain[i] + residual[i];
      }
    }
    expect_rounded_once(y, y_expected, tokens * hidden, dtype());
    expect_rounded_once(dx, dx_expected, tokens * hidden, dtype());
    rms_norm_backward(dtype(), dy.data(), x.data(), tokens, hidden, w, inverse_rms.data(), nullptr, dx.data());
    expect_rounded_once(dx, dx_plain, tokens * hidden, dtype());

    Values in_place = residual, alone = residual;
    rms_norm_backward(dtype(), dy.data(), x.data(), tokens, hidden, w, inverse_rms.data(), in_place.data(),
                      in_place.data());
    for (int64_t t = 0; t < tokens; ++t) {
      rms_norm_backward(dtype(), dy.at(t * hidden), x.at(t * hidden), 1, hidden, w, &inverse_rms[t],
                        alone.at(t * hidden), alone.at(t * hidden));
    }
    EXPECT_TRUE(alone == in_place);
  }
}

TEST_P(RowKernels, RmsNormOfAStreamInF32RoundsTheResultAndWhatIsKept) {
  for (const auto& [tokens, hidden] : {std::pair<int64_t, int64_t>{0, 64}, {3, 17}, {200, 576}}) {
    const Values x = Values::normal(DType::f32, tokens * hidden, 1, 3), weight = Values::normal(DType::f32, hidden, 4);
    const float* w = static_cast<const float*>(weight.data());
    std::vector<float> inverse_rms(tokens), inverse_of_f32(tokens);
    Values y(dtype(), tokens * hidden), kept = y, in_f32(DType::f32, tokens * hidden);
    rms_norm_forward(DType::f32, x.data(), tokens, hidden, w, 1e-5f, dtype(), y.data(), inverse_rms.data(), kept.data());
    rms_norm_forward(DType::f32, x.data(), tokens, hidden, w, 1e-5f, DType::f32, in_f32.data(), inverse_of_f32.data());
    EXPECT_EQ(inverse_rms, inverse_of_f32);
    Values rounded_y = y, rounded_x = kept;
    for (int64_t i = 0; i < tokens * hidden; ++i) rounded_y.set(i, in_f32[i]), rounded_x.set(i, x[i]);
    EXPECT_TRUE(y == rounded_y);
    EXPECT_TRUE(kept == rounded_x);
  }
}

TEST_P(RowKernels, RopeRotatesTheLeadingHeadsOnlyAndBackwardUndoesIt) {
  for (const int64_t head_dim : {2, 16, 34, 64, 128}) {
    const int64_t tokens = 33, heads = 4, stride = 6 * head_dim + 3, half = head_dim / 2, positions_count = 50;
    const Values x = Values::normal(dtype(), tokens * stride, 7);
    std::vector<float> cosine(positions_count * half), sine(positions_count * half);
    for (int64_t p = 0; p < positions_count; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        const double angle = double(p) * std::pow(10000.0, -double(i) / double(half));
        cosine[p * half + i] = float(std::cos(angle));
        sine[p * half + i] = float(std::sin(angle));
      }
    }
    std::vector<int32_t> positions(tokens);
    for (int64_t t = 0; t < tokens; ++t) positions[t] = int32_t(uniform_below(3, uint64_t(t), positions_count));
    std::vector<double> forward(tokens * stride), backward(tokens * stride);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < stride; ++c) forward[t * stride + c] = backward[t * stride + c] = x[t * stride + c];
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < half; ++i) {
          const int64_t low = t * stride + h * head_dim + i, high = low + half;
          const double c = cosine[positions[t] * half + i], s = sine[positions[t] * half + i];
          forward[low] = x[low] * c - x[high] * s;
          forward[high] = x[high] * c + x[low] * s;
          backward[low] = x[low] * c + x[high] * s;
          backward[high] = x[high] * c - x[low] * s;
        }
      }
    }
    Values y = x, z = x;
    rotate_in_place(dtype(), y.data(), tokens, stride, heads, head_dim, positions.data(), cosine.data(), sine.data(),
                    RopeDirection::forward);
    rotate_in_place(dtype(), z.data(), tokens, stride, heads, head_dim, positions.data(), cosine.data(), sine.data(),
                    RopeDirection::backward);
    expect_rounded_once(y, forward, tokens * stride, dtype());
    expect_rounded_once(z, backward, tokens * stride, dtype());
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = heads * head_dim; c < stride; ++c) ASSERT_EQ(y[t * stride + c], x[t * stride + c]);
    }
  }
}

TEST_P(RowKernels, SwigluAndItsGradientAgreeWithTheReference) {
  for (const auto& [tokens, width] : {std::pair<int64_t, int64_t>{0, 16}, {1, 1}, {7, 33}, {64, 1536}}) {
    const Values gate_up = Values::normal(dtype(), tokens * 2 * width, 11, 4), dy = Values::normal(dtype(), tokens * width, 12);
    Values y(dtype(), tokens * width), again = dy, dgate_up = gate_up, dgate_up_only(dtype(), tokens * 2 * width);
    swiglu_forward(dtype(), gate_up.data(), 2 * width, tokens, width, y.data(), width);
    swiglu_backward(dtype(), dy.data(), width, gate_up.data(), 2 * width, tokens, width, dgate_up_only.data(), 2 * width,
                    nullptr, 0);
    swiglu_backward(dtype(), again.data(), width, dgate_up.data(), 2 * width, tokens, width, dgate_up.data(), 2 * width,
                    again.data(), width);
    EXPECT_TRUE(again == y);
    EXPECT_TRUE(dgate_up == dgate_up_only);
    std::vector<double> y_expected(tokens * width), gradient(tokens * 2 * width);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < width; ++c) {
        const double g = gate_up[t * 2 * width + c], u = gate_up[t * 2 * width + width + c], d = dy[t * width + c];
        const double s = 1 / (1 + std::exp(-g));
        y_expected[t * width + c] = g * s * u;
        gradient[t * 2 * width + c] = d * u * s * (1 + g * (1 - s));
        gradient[t * 2 * width + width + c] = d * g * s;
      }
    }
    expect_rounded_once(y, y_expected, tokens * width, dtype(), 1e-8);
    expect_rounded_once(dgate_up, gradient, tokens * 2 * width, dtype(), 1e-7);
  }
}

TEST(Swiglu, ExtremeGatesStayFinite) {
  COTUNE_NEEDS_VECTORS;
  const std::vector<float> gate_up = {-3e38f, -1000, -88, 0, 88, 1000, 3e38f, 1, 1, 1, 1, 1, 1, 1};
  std::vector<float> y(7), gradient(14);
  const std::vector<float> dy(7, 1.f);
  swiglu_forward(DType::f32, gate_up.data(), 14, 1, 7, y.data(), 7);
  swiglu_backward(DType::f32, dy.data(), 7, gate_up.data(), 14, 1, 7, gradient.data(), 14, nullptr, 0);
  EXPECT_NEAR(y[1], 0, 1e-30);
  EXPECT_EQ(y[3], 0);
  EXPECT_FLOAT_EQ(y[5], 1000);
  EXPECT_FLOAT_EQ(gradient[5], 1);
  for (const float value : y) EXPECT_TRUE(std::isfinite(value));
  for (int i = 1; i < 14; ++i) EXPECT_TRUE(std::isfinite(gradient[i])) << i;
}

TEST(Swiglu, SigmoidIsWithinTwoUlp) {
  COTUNE_NEEDS_VECTORS;
  const int64_t count = 20000;
  std::vector<float> gate_up(2 * count), y(count);
  for (int64_t i = 0; i < count; ++i) gate_up[i] = float(-20 + 40.0 * double(i) / double(count));
  std::fill(gate_up.begin() + count, gate_up.end(), 1.f);
  swiglu_forward(DType::f32, gate_up.data(), 2 * count, 1, count, y.data(), count);
  for (int64_t i = 0; i < count; ++i) {
    const double g = gate_up[i], expected = g / (1 + std::exp(-g));
    ASSERT_NEAR(y[i], expected, 2.5 * 1.2e-7 * std::abs(expected)) << g;
  }
}

}  // namespace
}  // namespace cotune::kernels
