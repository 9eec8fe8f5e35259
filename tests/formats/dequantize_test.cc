#include "formats/dequantize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "formats/error_message.h"
#include "formats/safetensors.h"
#include "support/source_folder.h"

namespace cotune {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Case {
  const char* name;
  GgufType type;
};

class DequantizeType : public ::testing::TestWithParam<Case> {};

TEST_P(DequantizeType, EqualsThePythonPackageToTheBit) {
  const SafetensorsFile reference(source_folder() / "tests/formats/data/gguf_blocks.safetensors");
  const std::string name = GetParam().name;
  const TensorView& blocks = reference.at(name + ".blocks");
  const TensorView& expected = reference.at(name + ".values");
  std::vector<float> values(expected.bytes.size() / sizeof(float));
  dequantize(GetParam().type, blocks.bytes, values);
  EXPECT_EQ(std::memcmp(values.data(), expected.bytes.data(), expected.bytes.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(AllTypes, DequantizeType,
                         ::testing::Values(Case{"F32", GgufType::F32}, Case{"F16", GgufType::F16},
                                           Case{"BF16", GgufType::BF16}, Case{"Q8_0", GgufType::Q8_0},
                                           Case{"Q4_0", GgufType::Q4_0}, Case{"Q4_1", GgufType::Q4_1},
                                           Case{"Q5_0", GgufType::Q5_0}, Case{"Q5_1", GgufType::Q5_1},
                                           Case{"Q2_K", GgufType::Q2_K}, Case{"Q3_K", GgufType::Q3_K},
                                           Case{"Q4_K", GgufType::Q4_K}, Case{"Q5_K", GgufType::Q5_K},
                                           Case{"Q6_K", GgufType::Q6_K}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(FloatFromF16, ConvertsZerosSubnormalsInfinitiesAndNan) {
  EXPECT_EQ(float_from_f16(0x0000), 0.0f);
  EXPECT_TRUE(std::signbit(float_from_f16(0x8000)));
  EXPECT_EQ(float_from_f16(0x0001), 0x1p-24f);
  EXPECT_EQ(float_from_f16(0x83ff), -1023 * 0x1p-24f);
  EXPECT_EQ(float_from_f16(0x0400), 0x1p-14f);
  EXPECT_EQ(float_from_f16(0x3c00), 1.0f);
  EXPECT_EQ(float_from_f16(0x7bff), 65504.0f);
  EXPECT_EQ(float_from_f16(0xfc00), -INFINITY);
  EXPECT_TRUE(std::isnan(float_from_f16(0x7e00)));
}

TEST(FloatFromF16, IsMonotonicOverAllPositiveNumbers) {
  for (uint16_t bits = 0; bits < 0x7c00; ++bits)
    ASSERT_LT(float_from_f16(bits), float_from_f16(bits + 1)) << bits;
}

TEST(Dequantize, RefusesOtherTypesNamingTensorTypeAndTheAccepted) {
  GgufTensor tensor;
  tensor.name = "blk.0.ffn_down.weight";
  tensor.type = static_cast<GgufType>(20);
  EXPECT_THAT(user_error_of([&] { require_dequantizable(tensor, "x.gguf"); }),
              AllOf(HasSubstr("x.gguf"), HasSubstr("blk.0.ffn_down.weight"), HasSubstr("IQ4_NL"),
                    HasSubstr(dequantizable_types())));
  tensor.type = GgufType::Q4_1;
  EXPECT_EQ(user_error_of([&] { require_dequantizable(tensor, "x.gguf"); }), "");
  EXPECT_THAT(user_error_of([&] { gguf_block(static_cast<GgufType>(23)); }), HasSubstr("IQ4_XS"));
}

TEST(Dequantize, ChecksSizes) {
  std::vector<float> values(32);
  const std::vector<std::byte> blocks(34);
  EXPECT_NO_THROW(dequantize(GgufType::Q8_0, blocks, values));
  EXPECT_THROW(dequantize(GgufType::Q8_0, std::span(blocks).first(33), values), InternalError);
  EXPECT_THROW(dequantize(GgufType::Q8_0, blocks, std::span(values).first(31)), InternalError);
  EXPECT_NO_THROW(dequantize(GgufType::Q8_0, {}, {}));
}

}  // namespace
}  // namespace cotune
