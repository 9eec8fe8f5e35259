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
  void SetUp() override { COTUNE_NEEDS_VECTORS; }
};

INSTANTIATE_TEST_SUITE_P(DTypes, Dropout, testing::Values(DType::f32, DType::bf16));

TEST_P(Dropout, MaskIsTheFormulaForEverySiteOfACall) {
  const DType dtype = GetParam();
  for (const float probability : {0.f, 0.05f, 0.5f, 0.99f}) {
    for (const int64_t features : {1, 16, 100}) {
      const int64_t count = 40, stride = features + 3;
      // Two sites of the rows 0 to 25, and one of the others, of whose rows these are later columns.
      const std::vector<DropoutGroup> groups = {{{0x1234567890abcdefULL, probability}, {0, 25}, 0},
                                                {{7, probability / 2, 1000}, {25, 40}, 50},
                                                {{9, probability}, {0, 25}, 25}};
      std::vector<uint64_t> examples(count);
      std::vector<int32_t> positions(count);
      for (int64_t r = 0; r < count; ++r) {
        examples[r] = mix64(uint64_t(r / 7));
        positions[r] = int32_t(r % 7);
      }
      const DropoutRows rows = {features, examples.data(), positions.data()};
      const Values x = Values::normal(dtype, count * stride, 1), base = Values::normal(dtype, 65 * stride, 2);
      Values y = base, in_place = x, y_expected = base, in_place_expected = x;
      dropout_forward(dtype, groups, rows, x.data(), stride, y.data(), stride);
      const std::vector<DropoutGroup> one = {groups[0]};
      dropout_forward(dtype, one, rows, in_place.data(), stride, in_place.data(), stride);
      for (const DropoutGroup& group : groups) {
        const float scale = float(1.0 / (1.0 - double(group.site.probability)));
        for (int64_t r = group.rows.begin; r < group.rows.end; ++r) {
          for (int64_t f = 0; f < features; ++f) {
            const bool kept =
                keeps(group.site.key, double(group.site.probability), examples[r], positions[r],
                      uint32_t(group.site.first_feature + f));
            ASSERT_EQ(kept, dropout_keeps(group.site, examples[r], positions[r], f));
            const float value = kept ? float(x[r * stride + f]) * scale : 0.f;
            y_expected.set((group.target + r - group.rows.begin) * stride + f, value);
            if (group.site.key == one[0].site.key) in_place_expected.set(r * stride + f, value);
          }
        }
      }
      EXPECT_TRUE(y == y_expected);
      EXPECT_TRUE(in_place == in_place_expected);
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
