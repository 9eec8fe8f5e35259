// bf16 products in f32, as processors without AVX-512 take them: held on every processor against dense arithmetic in f64.

#include "ops/aten_products.h"

#include "ops/tensors.h"

namespace cotune::testing {
namespace {

/// 2⁻⁸: a value of bf16 that was rounded once, and f32's own rounding of its sum.
void expect_rounded_once(const at::Tensor& y, const at::Tensor& exact_y, const at::Tensor& magnitudes) {
  const at::Tensor limit = exact_y.abs() * std::ldexp(1.0, -8) + magnitudes * 1e-5;
  EXPECT_TRUE(((y.to(at::kDouble) - exact_y).abs() <= limit).all().item<bool>());
}

TEST(AtenProducts, InF32AreRoundedOnce) {
  // The second and third are wider and deeper than a block of the weight.
  for (const auto& [depth, columns] : std::vector<std::pair<int64_t, int64_t>>{{64, 96}, {32, 40000}, {40000, 24}, {1, 1}}) {
    for (const int64_t rows : {0, 1, 37}) {
      for (const bool transposed : {false, true}) {
        const at::Tensor a = random_tensor({rows, depth}, 1, at::kBFloat16);
        const std::vector<int64_t> shape = transposed ? std::vector{columns, depth} : std::vector{depth, columns};
        const at::Tensor stored = random_tensor(shape, 2, at::kBFloat16);
        const at::Tensor b = transposed ? stored.t() : stored;
        const at::Tensor bias = random_tensor({columns}, 3, at::kBFloat16);
        for (const at::Tensor& added : {at::Tensor(), bias}) {
          const at::Tensor y = multiply_in_f32(a, b, added);
          EXPECT_EQ(y.scalar_type(), at::kBFloat16);
          ASSERT_EQ(y.sizes(), (std::vector<int64_t>{rows, columns}));
          EXPECT_TRUE(y.is_contiguous());
          at::Tensor wanted = at::mm(exact(a), exact(b));
          if (added.defined()) wanted = wanted + exact(added);
          expect_rounded_once(y, wanted, at::mm(exact(a).abs(), exact(b).abs()));
        }
      }
    }
  }
}

TEST(AtenProducts, InF32GiveARowTheSameBitsWhateverTheOthers) {
  const at::Tensor a = random_tensor({70, 40000}, 1, at::kBFloat16), b = random_tensor({40000, 32}, 2, at::kBFloat16);
  const at::Tensor all = multiply_in_f32(a, b, {});
  for (const int64_t rows : {16, 33}) EXPECT_TRUE(at::equal(multiply_in_f32(a.narrow(0, 0, rows), b, {}), all.narrow(0, 0, rows))) << rows;
}

TEST(AtenProducts, OfBatchesAgreeWithDoublePrecision) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const at::Tensor a = random_tensor({3, 17, 32}, 1, dtype), b = random_tensor({3, 32, 24}, 2, dtype);
    const at::Tensor y = aten_batched_product(a, b);
    EXPECT_EQ(y.scalar_type(), dtype);
    EXPECT_LE(relative_error(y, at::bmm(exact(a), exact(b))), tolerance(dtype));
  }
}

TEST(AtenProducts, AreInF32ForBf16OnACpuAlone) {
  EXPECT_FALSE(multiplies_in_f32(at::kFloat, at::kCPU));
  EXPECT_FALSE(multiplies_in_f32(at::kDouble, at::kCPU));
  EXPECT_FALSE(multiplies_in_f32(at::kBFloat16, at::kCUDA));
}

}  // namespace
}  // namespace cotune::testing
