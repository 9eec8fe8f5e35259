// RMS norm, SwiGLU, dropout: our kernels against ATen, backward against finite differences.

#include <limits>

#include "kernels/dropout.h"
#include "ops/dropout.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"
#include "ops/tensors.h"

namespace cotune::testing {
namespace {

TEST(RmsNorm, KernelsAgreeWithAten) {
  for (const at::ScalarType dtype : kernel_dtypes()) {
    for (const int64_t tokens : {0, 1, 17}) {
      for (const int64_t hidden : {7, 64, 72, 576}) {
        const at::Tensor x = random_tensor({tokens, hidden}, 1, dtype, 3), dy = random_tensor({tokens, hidden}, 2, dtype),
                         residual = random_tensor({tokens, hidden}, 3, dtype),
                         weight = random_tensor({hidden}, 4, at::kFloat);
        const auto run = [&] {
          at::Tensor inverse;
          std::vector<at::Tensor> results{rms_norm(x, weight, 1e-5, inverse)};
          results.push_back(inverse);
          EXPECT_TRUE(at::equal(rms_norm_again(x, weight, inverse), results[0]));
          results.push_back(rms_norm_backward(dy, x, weight, inverse, {}));
          results.push_back(rms_norm_backward(dy, x, weight, inverse, residual));
          return results;
        };
        const std::vector<at::Tensor> ours = run();
        const PortableKernels portable;
        const std::vector<at::Tensor> expected = run();
        for (size_t i = 0; tokens > 0 && i < ours.size(); ++i) {
          EXPECT_LE(relative_error(ours[i], expected[i]), tolerance(dtype)) << dtype << " " << hidden << " " << i;
        }
      }
    }
  }
}

TEST(RmsNorm, BackwardIsTheGradientOfForward) {
  const at::Tensor x = random_tensor({3, 10}, 1, at::kDouble), d = random_tensor({3, 10}, 2, at::kDouble),
                   weight = random_tensor({10}, 3, at::kDouble), residual = random_tensor({3, 10}, 4, at::kDouble);
  at::Tensor inverse, unused;
  rms_norm(x, weight, 1e-5, inverse);
  const at::Tensor expected = numeric_gradient(x, [&] { return weighted_sum(rms_norm(x, weight, 1e-5, unused), d); });
  EXPECT_LE(relative_error(rms_norm_backward(d, x, weight, inverse, {}), expected), 1e-8);
  EXPECT_LE(relative_error(rms_norm_backward(d, x, weight, inverse, residual), expected + residual), 1e-8);
}

TEST(Swiglu, KernelsAgreeWithAten) {
  for (const at::ScalarType dtype : kernel_dtypes()) {
    for (const int64_t tokens : {0, 1, 9}) {
      for (const int64_t width : {5, 80, 160}) {
        const at::Tensor gate_up = random_tensor({tokens, 2 * width}, 1, dtype, 3), dy = random_tensor({tokens, width}, 2, dtype);
        const at::Tensor y = swiglu(gate_up);
        const SwigluGradient gradient = swiglu_backward(dy, gate_up);
        EXPECT_TRUE(at::equal(gradient.y, y));
        if (tokens == 0) continue;
        const PortableKernels portable;
        const SwigluGradient expected = swiglu_backward(dy, gate_up);
        EXPECT_LE(relative_error(y, expected.y), tolerance(dtype));
        EXPECT_LE(relative_error(gradient.d_gate_up, expected.d_gate_up), tolerance(dtype));
      }
    }
  }
}

TEST(Swiglu, BackwardIsTheGradientOfForward) {
  const at::Tensor gate_up = random_tensor({4, 14}, 1, at::kDouble), d = random_tensor({4, 7}, 2, at::kDouble);
  const at::Tensor expected = numeric_gradient(gate_up, [&] { return weighted_sum(swiglu(gate_up), d); });
  EXPECT_LE(relative_error(swiglu_backward(d, gate_up).d_gate_up, expected), 1e-8);
}

DropoutMask mask_of(int64_t rows, double probability) {
  DropoutMask mask{99, probability, at::empty({rows}, at::kLong), at::empty({rows}, at::kInt)};
  for (int64_t row = 0; row < rows; ++row) {
    mask.example_keys[row] = row / 4 * 1'000'003;
    mask.positions[row] = static_cast<int32_t>(row % 4);
  }
  return mask;
}

TEST(Dropout, KernelsAgreeWithAtenAndTheGradientHasTheSameMask) {
  for (const at::ScalarType dtype : kernel_dtypes()) {
    for (const int64_t features : {3, 64, 97}) {
      const DropoutMask mask = mask_of(13, 0.3);
      const at::Tensor x = random_tensor({13, features}, 1, dtype), dy = random_tensor({13, features}, 2, dtype),
                       start = random_tensor({13, features}, 3, dtype);
      at::Tensor y = at::empty_like(x), dx = start.clone();
      apply_dropout(mask, x, y);
      add_dropout_gradient(mask, dy, dx);
      const PortableKernels portable;
      at::Tensor expected_y = at::empty_like(x), expected_dx = start.clone();
      apply_dropout(mask, x, expected_y);
      add_dropout_gradient(mask, dy, expected_dx);
      EXPECT_TRUE(at::equal(y.eq(0), expected_y.eq(0)));
      EXPECT_LE(relative_error(y, expected_y), tolerance(dtype));
      EXPECT_LE(relative_error(dx, expected_dx), tolerance(dtype));
    }
  }
}

TEST(Dropout, ByTensorOperationsHasTheMaskOfTheFormula) {
  const PortableKernels portable;
  DropoutMask mask = mask_of(9, 0.4);
  mask.key = 0xFEDCBA9876543210;
  mask.example_keys[3] = -5;  // keys are 64 bits without a sign
  mask.example_keys[4] = std::numeric_limits<int64_t>::min();
  at::Tensor y = at::empty({9, 300}, at::kFloat);
  apply_dropout(mask, at::ones_like(y), y);
  for (int64_t row = 0; row < 9; ++row) {
    for (int64_t feature = 0; feature < 300; ++feature) {
      ASSERT_EQ(y[row][feature].item<float>() != 0,
                kernels::dropout_keeps({mask.key, 0.4F}, static_cast<uint64_t>(mask.example_keys[row].item<int64_t>()),
                                       mask.positions[row].item<int32_t>(), feature));
    }
  }
}

TEST(Dropout, KeepsTheExpectedShareScaledAndDependsOnCoordinatesAlone) {
  const DropoutMask mask = mask_of(200, 0.25);
  const at::Tensor x = at::ones({200, 100}, at::kDouble);
  at::Tensor y = at::empty_like(x);
  apply_dropout(mask, x, y);
  EXPECT_NEAR(y.ne(0).to(at::kDouble).mean().item<double>(), 0.75, 0.01);
  EXPECT_NEAR(y.max().item<double>(), 1 / 0.75, 1e-12);
  // The same rows elsewhere in a microbatch.
  DropoutMask part = mask;
  part.example_keys = mask.example_keys.narrow(0, 37, 50).clone();
  part.positions = mask.positions.narrow(0, 37, 50).clone();
  at::Tensor moved = at::empty({50, 100}, at::kDouble);
  apply_dropout(part, x.narrow(0, 0, 50), moved);
  EXPECT_TRUE(at::equal(moved, y.narrow(0, 37, 50)));
  at::Tensor dx = at::zeros_like(x);
  add_dropout_gradient(mask, x, dx);
  EXPECT_TRUE(at::equal(dx, y));
}

}  // namespace
}  // namespace cotune::testing
