#include "kernels/dropout.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/reference_values.h"

namespace cotune::kernels {
namespace {

/// The header's formula, written again.
bool keeps(uint64_t site, double probability, uint64_t example, int32_t position, uint32_t feature) {
  const uint64_t r = mix_key(mix_key(site, example), uint64_t(int64_t(position)));
  const auto round = [](uint32_t x) {
    x ^= x >> 16;
    x *= 0x85EBCA6Bu;
    x ^= x >> 13;
    x *= 0xC2B2AE35u;
    return x ^ (x >> 16);
  };
  const uint32_t h = round(round((feature * 0x9E3779B1u) ^ uint32_t(r)) ^ uint32_t(r >> 32));
  return double(h) >= std::floor(probability * 4294967296.0);
}

class Dropout : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override { COTUNE_NEEDS(GetParam()); }
};

INSTANTIATE_TEST_SUITE_P(DTypes, Dropout, testing::Values(DType::f32, DType::bf16));

TEST_P(Dropout, MaskIsTheFormulaAndBackwardUsesTheSame) {
  const DType dtype = GetParam();
  for (const float probability : {0.f, 0.05f, 0.5f, 0.99f}) {
    for (const int64_t features : {1, 16, 100}) {
      const int64_t count = 40, stride = features + 3;
      const DropoutSite site = {.key = 0x1234567890abcdefULL, .probability = probability};
      std::vector<uint64_t> examples(count);
      std::vector<int32_t> positions(count);
      for (int64_t r = 0; r < count; ++r) {
        examples[r] = mix64(uint64_t(r / 7));
        positions[r] = int32_t(r % 7);
      }
      const DropoutRows rows = {count, features, examples.data(), positions.data()};
      const Values x = Values::normal(dtype, count * stride, 1), base = Values::normal(dtype, count * stride, 2);
      Values y = base, dx = base, in_place = x;
      dropout_forward(dtype, site, rows, x.data(), stride, y.data(), stride);
      dropout_forward(dtype, site, rows, in_place.data(), stride, in_place.data(), stride);
      dropout_backward_add(dtype, site, rows, x.data(), stride, dx.data(), stride);
      Values y_expected = base, dx_expected = base;
      const float scale = float(1.0 / (1.0 - double(probability)));
      for (int64_t r = 0; r < count; ++r) {
        for (int64_t f = 0; f < features; ++f) {
          const int64_t i = r * stride + f;
          const bool kept = keeps(site.key, double(probability), examples[r], positions[r], uint32_t(f));
          ASSERT_EQ(kept, dropout_keeps(site, examples[r], positions[r], f));
          y_expected.set(i, kept ? float(x[i]) * scale : 0.f);
          dx_expected.set(i, kept ? std::fma(float(x[i]), scale, float(base[i])) : float(base[i]));
          ASSERT_EQ(in_place[i], y_expected[i]);
        }
      }
      EXPECT_TRUE(y == y_expected);
      EXPECT_TRUE(dx == dx_expected);
    }
  }
}

TEST(DropoutMask, DropsTheAskedShareAndRowsAreUnrelated) {
  const DropoutSite site = {.key = 99, .probability = 0.1f};
  int64_t dropped = 0, both = 0;
  const int64_t rows = 200, features = 1000;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t f = 0; f < features; ++f) {
      const bool here = !dropout_keeps(site, 5, int32_t(r), f), next = !dropout_keeps(site, 5, int32_t(r + 1), f);
      dropped += here;
      both += here && next;
    }
  }
  EXPECT_NEAR(double(dropped) / double(rows * features), 0.1, 0.003);
  EXPECT_NEAR(double(both) / double(rows * features), 0.01, 0.001);
}

}  // namespace
}  // namespace cotune::kernels
