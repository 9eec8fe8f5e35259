// RMS norm, SwiGLU, dropout: our kernels against ATen, backward against finite differences.

#include <limits>

#include "kernels/dropout.h"
#include "ops/backend.h"
#include "ops/dropout.h"
#include "ops/low_rank.h"
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
        const auto run = [&](const auto& place) {
          const at::Tensor x_there = place(x), dy_there = place(dy), weight_there = place(weight);
          at::Tensor inverse;
          std::vector<at::Tensor> results{rms_norm(x_there, weight_there, 1e-5, x_there.scalar_type(), inverse)};
          results.push_back(inverse);
          EXPECT_TRUE(at::equal(rms_norm_again(x_there, weight_there, inverse), results[0]));
          results.push_back(rms_norm_backward(dy_there, x_there, weight_there, inverse, {}));
          results.push_back(rms_norm_backward(dy_there, x_there, weight_there, inverse, place(residual)));
          return results;
        };
        const std::vector<at::Tensor> ours = run(on_device);
        const PortableKernels portable;
        const std::vector<at::Tensor> expected = run(on_host);
        for (size_t i = 0; tokens > 0 && i < ours.size(); ++i) {
          EXPECT_LE(relative_error(ours[i], expected[i]), tolerance(dtype)) << dtype << " " << hidden << " " << i;
        }
      }
    }
  }
}

TEST(RmsNorm, OfAStreamInTheAccumulationDtypeAgreesWithAtenAndKeepsARoundedCopy) {
  for (const at::ScalarType dtype : kernel_dtypes()) {
    for (const int64_t hidden : {7, 64, 576}) {
      const at::Tensor stream = random_tensor({17, hidden}, 1, accumulation_dtype(dtype), 3), weight = random_tensor({hidden}, 4, at::kFloat);
      const auto run = [&](const auto& place) {
        at::Tensor inverse, kept;
        const at::Tensor y = rms_norm(place(stream), place(weight), 1e-5, dtype, inverse, &kept);
        EXPECT_EQ(y.scalar_type(), dtype);
        EXPECT_TRUE(same_bits(kept, place(stream).to(dtype))) << dtype << " " << hidden;
        return std::vector<at::Tensor>{y, inverse};
      };
      const std::vector<at::Tensor> ours = run(on_device);
      const PortableKernels portable;
      const std::vector<at::Tensor> expected = run(on_host);
      EXPECT_LE(relative_error(ours[0], expected[0]), tolerance(dtype)) << dtype << " " << hidden;
      EXPECT_LE(relative_error(ours[1], expected[1]), 1e-5) << dtype << " " << hidden;
    }
  }
}

TEST(RmsNorm, BackwardIsTheGradientOfForward) {
  const at::Tensor x = random_tensor({3, 10}, 1, at::kDouble), d = random_tensor({3, 10}, 2, at::kDouble),
                   weight = random_tensor({10}, 3, at::kDouble), residual = random_tensor({3, 10}, 4, at::kDouble);
  at::Tensor inverse, unused;
  rms_norm(x, weight, 1e-5, x.scalar_type(), inverse);
  const at::Tensor expected = numeric_gradient(x, [&] { return weighted_sum(rms_norm(x, weight, 1e-5, x.scalar_type(), unused), d); });
  EXPECT_LE(relative_error(rms_norm_backward(d, x, weight, inverse, {}), expected), 1e-8);
  EXPECT_LE(relative_error(rms_norm_backward(d, x, weight, inverse, residual), expected + exact(residual)), 1e-8);
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
        const SwigluGradient expected = swiglu_backward(on_host(dy), on_host(gate_up));
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

/// Where threads divide a tensor depends on its size: a row's bits must not.
TEST(Swiglu, OnAtenARowHasTheSameBitsAmongAnyOthers) {
  const PortableKernels portable;
  const at::Tensor gate_up = random_tensor({701, 2 * 99}, 1, at::kFloat, 3), dy = random_tensor({701, 99}, 2, at::kFloat);
  const at::Tensor y = swiglu(gate_up);
  const SwigluGradient gradient = swiglu_backward(dy, gate_up);
  for (const int64_t first : {0, 1, 350, 663}) {
    for (const int64_t rows : {1, 7, 38}) {
      const at::Tensor some = gate_up.narrow(0, first, rows).clone();
      EXPECT_TRUE(at::equal(swiglu(some), y.narrow(0, first, rows))) << first << " " << rows;
      const SwigluGradient part = swiglu_backward(dy.narrow(0, first, rows).clone(), some);
      EXPECT_TRUE(at::equal(part.d_gate_up, gradient.d_gate_up.narrow(0, first, rows))) << first << " " << rows;
      EXPECT_TRUE(at::equal(part.y, gradient.y.narrow(0, first, rows))) << first << " " << rows;
    }
  }
}

DropoutRows coordinates_of(int64_t rows) {
  DropoutRows coordinates{at::empty({rows}, at::kLong), at::empty({rows}, at::kInt)};
  for (int64_t row = 0; row < rows; ++row) {
    coordinates.example_keys[row] = row / 4 * 1'000'003;
    coordinates.positions[row] = static_cast<int32_t>(row % 4);
  }
  return {on_device(coordinates.example_keys), on_device(coordinates.positions)};
}

DropoutRows on_host(const DropoutRows& rows) {
  return {testing::on_host(rows.example_keys), testing::on_host(rows.positions)};
}

TEST(Dropout, KernelsAgreeWithAtenForEverySiteOfACall) {
  for (const at::ScalarType dtype : kernel_dtypes()) {
    for (const int64_t features : {3, 64, 97}) {
      const DropoutRows coordinates = coordinates_of(23);
      const std::vector<DropoutGroup> groups{{{99, 0.3}, {0, 13}}, {{7, 0.6}, {15, 23}}, {{98, 0.3}, {0, 13}}};
      const at::Tensor x = random_tensor({23, features}, 1, dtype), y = apply_dropout(groups, coordinates, x);
      const PortableKernels portable;
      const at::Tensor expected = apply_dropout(groups, on_host(coordinates), testing::on_host(x));
      EXPECT_TRUE(same_bits(y.eq(0), expected.eq(0)));
      EXPECT_LE(relative_error(y, expected), tolerance(dtype));
      EXPECT_FALSE(at::equal(y.narrow(0, 0, 13).eq(0), y.narrow(0, 21, 13).eq(0))) << "a mask of each site's own";
    }
  }
}

/// What dropout's gradient adds: masked products of low-rank factors, with other jobs' plain ones of a residual's kind beside.
TEST(Expansions, KernelsAgreeWithAtenWithMasksBiasesAndResiduals) {
  for (const at::ScalarType dtype : kernel_dtypes()) {
    const int64_t rows = 60, width = 96;
    const DropoutRows coordinates = coordinates_of(rows);
    struct Site {
      RowRange rows;
      int64_t rank;
    };
    const std::vector<Site> sites{{{0, 20}, 5}, {{20, 29}, 40}, {{31, 60}, 16}, {{0, 20}, 8}, {{31, 60}, 33}};
    const auto run = [&](bool masked, at::Tensor y) {
      const auto tensor = [&](at::IntArrayRef shape, uint64_t key, at::ScalarType type) {
        return random_tensor(shape, key, type).to(y.device());
      };
      const at::Tensor residual = tensor({rows, width}, 4, y.scalar_type());
      std::vector<std::unique_ptr<LowRankFactor>> factors;
      std::vector<ExpandGroup> groups;
      for (size_t i = 0; i < (masked ? sites.size() : 3); ++i) {
        const Site& site = sites[i];
        factors.push_back(make_low_rank_factor(tensor({site.rank, width}, 20 + i, at::kFloat), dtype));
        at::Tensor s = at::zeros({site.rows.count(), factors.back()->padded_rank()}, y.options().dtype(dtype));
        s.narrow(1, 0, site.rank).copy_(tensor({site.rows.count(), site.rank}, 30 + i, dtype));
        groups.push_back({.rows = site.rows, .s = s, .factor = factors.back().get()});
        if (masked) groups.back().dropout = DropoutKey{i, 0.1 * static_cast<double>(i)};
        if (!masked) groups.back().bias = tensor({width}, 40 + i, at::kFloat);
      }
      if (masked) {
        add_expansions(y, groups, {.dropout = y.is_cpu() ? on_host(coordinates) : coordinates});
      } else {
        add_expansions(y, groups, {.residual = residual});
      }
      return y;
    };
    for (const bool masked : {false, true}) {
      for (const bool of_stream : {false, true}) {  // in the accumulation dtype, and not rounded
        const at::Tensor start = random_tensor({rows, width}, 1, of_stream ? accumulation_dtype(dtype) : dtype, of_stream ? 1e3 : 1);
        const at::Tensor y = run(masked, start.clone());
        const PortableKernels portable;
        const at::Tensor expected = run(masked, testing::on_host(start).clone());
        EXPECT_LE(relative_error(y, expected), of_stream ? 2e-4 : 2 * tolerance(dtype)) << dtype << masked;
        EXPECT_TRUE(at::equal(y.narrow(0, 29, 2), start.narrow(0, 29, 2))) << "rows of no group";
      }
    }
  }
}

TEST(Dropout, ByTensorOperationsHasTheMaskOfTheFormula) {
  const PortableKernels portable;
  DropoutRows coordinates = on_host(coordinates_of(9));
  coordinates.example_keys[3] = -5;  // keys are 64 bits without a sign
  coordinates.example_keys[4] = std::numeric_limits<int64_t>::min();
  const DropoutKey first{0xFEDCBA9876543210, 0.4}, second{0x123456789, 0.25};
  const DropoutRows rows{on_device(coordinates.example_keys), on_device(coordinates.positions)};
  const at::Tensor y =
      testing::on_host(apply_dropout({{first, {0, 9}}, {second, {2, 7}}}, rows, on_device(at::ones({9, 300}, at::kFloat))));
  for (int64_t row = 0; row < 14; ++row) {
    const int64_t of = row < 9 ? row : row - 9 + 2;
    const DropoutKey& site = row < 9 ? first : second;
    for (int64_t feature = 0; feature < 300; ++feature) {
      ASSERT_EQ(y[row][feature].item<float>() != 0,
                kernels::dropout_keeps({site.key, static_cast<float>(site.probability)},
                                       static_cast<uint64_t>(coordinates.example_keys[of].item<int64_t>()),
                                       coordinates.positions[of].item<int32_t>(), feature));
    }
  }
}

TEST(Dropout, KeepsTheExpectedShareScaledAndDependsOnCoordinatesAlone) {
  const DropoutRows coordinates = coordinates_of(200);
  const DropoutKey site{99, 0.25};
  const at::Tensor x = on_device(at::ones({200, 100}, at::kDouble)), y = apply_dropout({{site, {0, 200}}}, coordinates, x);
  EXPECT_NEAR(y.ne(0).to(at::kDouble).mean().item<double>(), 0.75, 0.01);
  EXPECT_NEAR(y.max().item<double>(), 1 / 0.75, 1e-12);
  // The same rows elsewhere in a microbatch.
  const DropoutRows part{coordinates.example_keys.narrow(0, 37, 50).clone(), coordinates.positions.narrow(0, 37, 50).clone()};
  EXPECT_TRUE(at::equal(apply_dropout({{site, {0, 50}}}, part, x), y.narrow(0, 37, 50)));
}

TEST(Dropout, OfLaterColumnsIsThatOfTheWholeRow) {
  std::vector<at::ScalarType> dtypes = kernel_dtypes();
  dtypes.push_back(at::kDouble);
  for (const at::ScalarType dtype : dtypes) {
    const DropoutRows coordinates = coordinates_of(40);
    const at::Tensor x = random_tensor({40, 128}, 1, dtype), s = random_tensor({40, 32}, 2, dtype), master = random_tensor({32, 128}, 3, accumulation_dtype(dtype));
    const DropoutKey whole{99, 0.3}, later{99, 0.3, 64};
    const at::Tensor masked = apply_dropout({{whole, {0, 40}}}, coordinates, x);
    EXPECT_TRUE(same_bits(apply_dropout({{later, {0, 40}}}, coordinates, x.narrow(1, 64, 64)), masked.narrow(1, 64, 64)));
    const auto all = make_low_rank_factor(master, dtype), part = make_low_rank_factor(master.narrow(1, 64, 64).contiguous(), dtype);
    at::Tensor y = x.clone(), part_of_y = x.narrow(1, 64, 64).contiguous();
    add_expansions(y, {{.rows = {0, 40}, .s = s, .factor = all.get(), .dropout = whole}}, {.dropout = coordinates});
    add_expansions(part_of_y, {{.rows = {0, 40}, .s = s, .factor = part.get(), .dropout = later}}, {.dropout = coordinates});
    EXPECT_LE(relative_error(part_of_y, y.narrow(1, 64, 64)), tolerance(dtype));
  }
}

}  // namespace
}  // namespace cotune::testing
