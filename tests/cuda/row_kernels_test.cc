// The GPU's row kernels, through the operators, against f64 on the CPU: any sizes and alignments, rows that do not know
// of one another. Run on a GPU only: COTUNE_TEST_DEVICE=cuda build/test_cuda.

#include <cmath>
#include <limits>

#include "base/random.h"
#include "cuda/gpu_test.h"
#include "kernels/dropout.h"
#include "ops/attention.h"
#include "ops/backend.h"
#include "ops/cross_entropy_head.h"
#include "ops/dropout.h"
#include "ops/rms_norm.h"
#include "ops/swiglu.h"
#include "ops/tensors.h"

namespace cotune::testing {
namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr float infinite = std::numeric_limits<float>::infinity();

class RowKernels : public GpuTest<at::ScalarType> {
 protected:
  static at::ScalarType dtype() { return GetParam(); }
  /// Of one result's elements against exact values: one rounding, and sums in f32.
  static double limit() { return dtype() == at::kFloat ? 3e-6 : 4e-3; }
};

INSTANTIATE_TEST_SUITE_P(Dtypes, RowKernels, ::testing::Values(at::kBFloat16, at::kFloat),
                         [](const auto& info) { return c10::toString(info.param); });

/// Standard normal values on the CPU.
at::Tensor drawn(at::IntArrayRef shape, uint64_t key, at::ScalarType dtype, double scale = 1) {
  return on_host(random_tensor(shape, key, dtype, scale));
}

/// A copy on the device whose first element lies `offset` elements behind a multiple of 16 bytes. Contiguous.
at::Tensor placed(const at::Tensor& values, int64_t offset = 0) {
  at::Tensor room = at::empty({values.numel() + offset}, values.options().device(test_device()));
  at::Tensor copy = room.narrow(0, offset, values.numel()).view(values.sizes());
  copy.copy_(values);
  return copy;
}


/// The largest |actual − expected| / (|expected| + scale), NaN where a NaN stands alone; scale: what the terms that
/// cancel are about as large as, a number or a tensor.
template <typename Scale>
double largest_error(const at::Tensor& actual, const at::Tensor& expected, const Scale& scale) {
  if (actual.numel() == 0) return 0;
  return ((exact(actual) - expected).abs() / (expected.abs() + scale)).max().template item<double>();
}

/// Whether rows other than `row` have equal bits in both.
bool others_equal(const at::Tensor& a, const at::Tensor& b, int64_t row) {
  return equal_bits(a.narrow(0, 0, row), b.narrow(0, 0, row)) &&
         equal_bits(a.narrow(0, row + 1, a.size(0) - row - 1), b.narrow(0, row + 1, b.size(0) - row - 1));
}

// ---- RMS norm ----

struct Normalised {
  at::Tensor y, inverse_rms, dx, dx_alone;
};

Normalised comparable_text(const at::Tensor& x, const at::Tensor& dy, const at::Tensor& residual, const at::Tensor& weight) {
  Normalised result;
  result.y = rms_norm(x, weight, 1e-5, x.scalar_type(), result.inverse_rms);
  EXPECT_TRUE(equal_bits(rms_norm_again(x, weight, result.inverse_rms), result.y));
  result.dx = rms_norm_backward(dy, x, weight, result.inverse_rms, residual);
  result.dx_alone = rms_norm_backward(dy, x, weight, result.inverse_rms, {});
  return result;
}

TEST_P(RowKernels, NormaliseRowsOfAnySize) {
  for (const int64_t columns : {1, 7, 64, 576, 2049, 4096, 14336, 16392}) {
    for (const int64_t rows : {0, 1, 5}) {
      for (const int64_t offset : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << rows << " rows of " << columns << ", offset " << offset);
        const at::Tensor x = drawn({rows, columns}, 1, dtype(), 3), dy = drawn({rows, columns}, 2, dtype()),
                         residual = drawn({rows, columns}, 3, dtype()), weight = drawn({columns}, 4, at::kFloat);
        const Normalised ours = comparable_text(placed(x, offset), placed(dy), placed(residual, offset), placed(weight));
        EXPECT_EQ(ours.y.sizes(), x.sizes());
        if (rows == 0) continue;
        const at::Tensor wide = exact(x), inverse = (wide.square().mean(-1, true) + 1e-5).rsqrt(),
                         scaled = exact(dy) * exact(weight);
        const at::Tensor dx = (scaled - wide * (scaled * wide).mean(-1, true) * inverse.square()) * inverse;
        EXPECT_LE(largest_error(ours.inverse_rms, inverse.squeeze(1), 0.0), 2e-6);
        EXPECT_LE(largest_error(ours.y, wide * inverse * exact(weight), 1e-6), limit());
        const at::Tensor scale = inverse * (1 + scaled.abs().amax(-1, true));
        EXPECT_LE(largest_error(ours.dx_alone, dx, scale), limit());
        EXPECT_LE(largest_error(ours.dx, dx + exact(residual), scale), limit());
      }
    }
  }
}

TEST_P(RowKernels, NormaliseARowWithTheSameBitsAmongAnyOthers) {
  for (const int64_t columns : {7, 576, 4096, 14336}) {
    const at::Tensor x = drawn({9, columns}, 1, dtype(), 3), dy = drawn({9, columns}, 2, dtype()),
                     residual = drawn({9, columns}, 3, dtype()), weight = placed(drawn({columns}, 4, at::kFloat));
    const Normalised all = comparable_text(placed(x), placed(dy), placed(residual), weight);
    for (const int64_t row : {0, 4, 8}) {
      const auto alone = [&](const at::Tensor& tensor) { return placed(tensor.narrow(0, row, 1), 1); };
      const Normalised one = comparable_text(alone(x), alone(dy), alone(residual), weight);
      EXPECT_TRUE(equal_bits(one.y, all.y.narrow(0, row, 1))) << columns << " " << row;
      EXPECT_TRUE(equal_bits(one.inverse_rms, all.inverse_rms.narrow(0, row, 1))) << columns << " " << row;
      EXPECT_TRUE(equal_bits(one.dx, all.dx.narrow(0, row, 1))) << columns << " " << row;
    }
    for (const float poison : {not_a_number, infinite}) {
      at::Tensor ill = placed(x);
      ill[3][columns / 2] = poison;
      const Normalised with = comparable_text(ill, placed(dy), placed(residual), weight);
      EXPECT_TRUE(with.y[3].isnan().any().item<bool>());
      EXPECT_TRUE(with.dx[3].isnan().any().item<bool>());
      EXPECT_TRUE(others_equal(with.y, all.y, 3));
      EXPECT_TRUE(others_equal(with.dx, all.dx, 3));
    }
  }
}

TEST_P(RowKernels, TakeMoreRowsThanOtherGridDimensionsHold) {
  const int64_t rows = 70'001;
  const at::Tensor x = drawn({rows, 16}, 1, dtype()), weight = placed(drawn({8}, 2, at::kFloat));
  const at::Tensor half = placed(x).view({2 * rows, 8});
  at::Tensor inverse, last_inverse;
  const at::Tensor y = rms_norm(half, weight, 1e-5, half.scalar_type(), inverse), activated = swiglu(placed(x));
  for (const int64_t row : {int64_t{65'535}, int64_t{65'536}, rows - 1}) {
    const at::Tensor some = placed(x.narrow(0, row, 1));
    EXPECT_TRUE(equal_bits(rms_norm(some.view({2, 8}), weight, 1e-5, some.view({2, 8}).scalar_type(), last_inverse), y.narrow(0, 2 * row, 2)));
    EXPECT_TRUE(equal_bits(swiglu(some), activated.narrow(0, row, 1)));
  }
}

// ---- rotary embedding ----

TEST_P(RowKernels, RotateTheFirstHeadsOfEveryRowAndBack) {
  constexpr int64_t table_rows = 300, rows = 11;
  for (const int64_t head_dim : {2, 6, 16, 64, 80, 128, 256}) {
    for (const int64_t beside : {0, 3, 16}) {  // columns behind the heads
      SCOPED_TRACE(::testing::Message() << "heads of " << head_dim << ", " << beside << " beside");
      const int64_t heads = 5, columns = heads * head_dim + beside;
      std::vector<double> frequencies;
      for (int64_t i = 0; i < head_dim / 2; ++i) frequencies.push_back(std::pow(10'000, -2.0 * i / head_dim));
      const RotaryTable table = rotary_table(frequencies, table_rows, dtype(), test_device());
      const at::Tensor x = drawn({rows, columns}, 1, dtype());
      at::Tensor positions = at::empty({rows}, at::kInt);
      for (int64_t row = 0; row < rows; ++row) positions[row] = static_cast<int32_t>(row * 37 % table_rows);
      at::Tensor y = placed(x);
      rotate_in_place(y, placed(positions), table, heads, head_dim, 1);
      const at::Tensor pairs = exact(x.narrow(1, 0, heads * head_dim)).view({rows, heads, 2, head_dim / 2});
      const at::Tensor cosine = exact(table.cosine).index_select(0, positions).unsqueeze(1),
                       sine = exact(table.sine).index_select(0, positions).unsqueeze(1);
      const at::Tensor first = pairs.select(2, 0), second = pairs.select(2, 1);
      const at::Tensor expected =
          at::stack({first * cosine - second * sine, second * cosine + first * sine}, 2).view({rows, heads * head_dim});
      EXPECT_LE(largest_error(y.narrow(1, 0, heads * head_dim), expected, 1.0), limit());
      EXPECT_TRUE(equal_bits(y.narrow(1, heads * head_dim, beside), x.narrow(1, heads * head_dim, beside)));
      at::Tensor one = placed(x.narrow(0, 7, 1), 1);
      rotate_in_place(one, placed(positions.narrow(0, 7, 1)), table, heads, head_dim, 1);
      EXPECT_TRUE(equal_bits(one, y.narrow(0, 7, 1))) << "alone, elsewhere in memory";
      rotate_in_place(y, placed(positions), table, heads, head_dim, -1);
      EXPECT_LE(largest_error(y, exact(x), 3.0), 2 * limit());

      positions[4] = static_cast<int32_t>(table_rows);
      at::Tensor beyond = placed(x);
      rotate_in_place(beyond, placed(positions), table, heads, head_dim, 1);
      EXPECT_TRUE(beyond.narrow(1, 0, heads * head_dim)[4].isnan().all().item<bool>());
      EXPECT_FALSE(beyond.narrow(0, 0, 4).isnan().any().item<bool>());
      EXPECT_FALSE(beyond.narrow(0, 5, 6).isnan().any().item<bool>());
    }
  }
  at::Tensor none = placed(at::empty({0, 64}, dtype()));
  rotate_in_place(none, placed(at::empty({0}, at::kInt)), rotary_table({1, 0.5}, 4, dtype(), test_device()), 4, 4, 1);
}

// ---- SwiGLU ----

TEST_P(RowKernels, GateRowsOfAnySize) {
  for (const int64_t width : {1, 5, 80, 576, 2049, 4096, 14336}) {
    for (const int64_t rows : {0, 1, 4}) {
      for (const int64_t offset : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << rows << " rows of " << width << ", offset " << offset);
        const at::Tensor gate_up = drawn({rows, 2 * width}, 1, dtype(), 4), dy = drawn({rows, width}, 2, dtype());
        const at::Tensor y = swiglu(placed(gate_up, offset));
        const SwigluGradient gradient = swiglu_backward(placed(dy, offset), placed(gate_up));
        EXPECT_EQ(y.sizes(), dy.sizes());
        EXPECT_TRUE(equal_bits(gradient.y, y));
        const at::Tensor gate = exact(gate_up.narrow(1, 0, width)), up = exact(gate_up.narrow(1, width, width)),
                         d = exact(dy);
        const at::Tensor share = gate.sigmoid(), silu = gate * share;
        EXPECT_LE(largest_error(y, silu * up, 1e-6), limit());
        EXPECT_LE(largest_error(gradient.d_gate_up.narrow(1, 0, width), d * up * share * (1 + gate * (1 - share)),
                                d.abs() * up.abs() * 0.1 + 1e-9),
                  limit());
        EXPECT_LE(largest_error(gradient.d_gate_up.narrow(1, width, width), d * silu, 1e-6), limit());
      }
    }
  }
}

TEST_P(RowKernels, GateARowWithTheSameBitsAmongAnyOthers) {
  for (const int64_t width : {5, 576, 14336}) {
    const at::Tensor gate_up = drawn({9, 2 * width}, 1, dtype(), 4), dy = drawn({9, width}, 2, dtype());
    const at::Tensor y = swiglu(placed(gate_up));
    const SwigluGradient gradient = swiglu_backward(placed(dy), placed(gate_up));
    for (const int64_t row : {0, 4, 8}) {
      const SwigluGradient one = swiglu_backward(placed(dy.narrow(0, row, 1), 1), placed(gate_up.narrow(0, row, 1), 1));
      EXPECT_TRUE(equal_bits(one.y, y.narrow(0, row, 1)));
      EXPECT_TRUE(equal_bits(one.d_gate_up, gradient.d_gate_up.narrow(0, row, 1)));
    }
    at::Tensor ill = placed(gate_up);
    ill[3][width] = not_a_number;
    EXPECT_TRUE(others_equal(swiglu(ill), y, 3));
    EXPECT_TRUE(others_equal(swiglu_backward(placed(dy), ill).d_gate_up, gradient.d_gate_up, 3));
    EXPECT_TRUE(swiglu(ill)[3][0].isnan().item<bool>());
  }
}

TEST_P(RowKernels, GateTensorsWithOtherStrides) {
  const at::Tensor gate_up = drawn({6, 2 * 96}, 1, dtype()), dy = drawn({6, 96}, 2, dtype());
  const auto apart = [](const at::Tensor& values) {  // a view of wider rows
    const at::Tensor wide = at::zeros({values.size(0), values.size(1) + 5}, values.options().device(test_device()));
    at::Tensor view = wide.narrow(1, 2, values.size(1));
    view.copy_(values);
    return view;
  };
  EXPECT_TRUE(equal_bits(swiglu(apart(gate_up)), swiglu(placed(gate_up))));
  EXPECT_TRUE(equal_bits(swiglu_backward(apart(dy), apart(gate_up)).d_gate_up,
                         swiglu_backward(placed(dy), placed(gate_up)).d_gate_up));
}

// ---- cross-entropy ----

struct Entropy {
  at::Tensor losses, gradient, first_choice;
};

/// As the head calls it when it trains (the gradient in the logits' memory) and when it evaluates: equal losses.
Entropy entropy(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& row_scale, int64_t offset = 0) {
  const int64_t rows = logits.size(0), columns = logits.size(1);
  const at::Tensor device_labels = placed(labels), device_scale = placed(row_scale);
  Entropy result{at::empty({rows}, device_scale.options()), placed(logits, offset),
                 at::empty({rows}, device_labels.options().dtype(at::kLong))};
  const GpuType type = gpu_type(logits.scalar_type());
  const auto run = [&](const at::Tensor& scores, at::Tensor& losses, void* gradient, int64_t* first_choice) {
    active_gpu_kernels()->softmax_cross_entropy(
        type, scores.const_data_ptr(), rows, columns, device_labels.const_data_ptr<int32_t>(),
        device_scale.const_data_ptr<float>(), losses.mutable_data_ptr<float>(), gradient, first_choice);
  };
  at::Tensor losses = at::empty_like(result.losses), gradient = at::empty_like(result.gradient);
  const at::Tensor scores = placed(logits);
  run(scores, losses, gradient.mutable_data_ptr(), nullptr);
  run(result.gradient, result.losses, result.gradient.mutable_data_ptr(), nullptr);
  EXPECT_TRUE(equal_bits(losses, result.losses));
  EXPECT_TRUE(equal_bits(gradient, result.gradient)) << "in place";
  run(scores, losses, nullptr, result.first_choice.mutable_data_ptr<int64_t>());
  EXPECT_TRUE(equal_bits(losses, result.losses)) << "without a gradient";
  return result;
}

at::Tensor random_labels(int64_t rows, int64_t columns) {
  at::Tensor labels = at::empty({rows}, at::kInt);
  for (int64_t row = 0; row < rows; ++row) {
    labels[row] = static_cast<int32_t>(uniform_below(9, static_cast<uint64_t>(row), static_cast<uint64_t>(columns)));
  }
  return labels;
}

TEST_P(RowKernels, CrossEntropyOfAnyVocabulary) {
  for (const int64_t columns : {1, 7, 160, 4096, 4100, 49152, 128'256, 151'937}) {
    for (const int64_t rows : {0, 1, 6}) {
      for (const int64_t offset : {0, 1}) {
        SCOPED_TRACE(::testing::Message() << rows << " rows of " << columns << ", offset " << offset);
        const at::Tensor logits = drawn({rows, columns}, 1, dtype(), 4), labels = random_labels(rows, columns),
                         row_scale = drawn({rows}, 3, at::kFloat);
        const Entropy ours = entropy(logits, labels, row_scale, offset);
        if (rows == 0) continue;
        const at::Tensor scores = exact(logits), normaliser = scores.logsumexp(-1, true),
                         index = labels.to(at::kLong).unsqueeze(1);
        const at::Tensor losses = (normaliser - scores.gather(1, index)).squeeze(1);
        at::Tensor gradient = (scores - normaliser).exp();
        gradient.scatter_add_(1, index, at::full_like(index, -1, gradient.options()));
        gradient.mul_(exact(row_scale).unsqueeze(1));
        EXPECT_LE(largest_error(ours.losses, losses, 1.0), 2e-6);
        // The label's is a difference of numbers near 1; others are as exact as their exponentials.
        at::Tensor scale = at::full_like(gradient, 1e-30);
        scale.scatter_(1, index, exact(row_scale).abs().unsqueeze(1) * (dtype() == at::kFloat ? 1.0 : 1e-3));
        EXPECT_LE(largest_error(ours.gradient, gradient, scale), 3 * limit());
        EXPECT_TRUE(at::equal(ours.first_choice.cpu(), logits.argmax(1)));
      }
    }
  }
}

TEST_P(RowKernels, CrossEntropyOfARowHasTheSameBitsAmongAnyOthers) {
  for (const int64_t columns : {7, 4096, 49153}) {
    const at::Tensor logits = drawn({9, columns}, 1, dtype(), 4), labels = random_labels(9, columns),
                     row_scale = drawn({9}, 3, at::kFloat);
    const Entropy all = entropy(logits, labels, row_scale);
    for (const int64_t row : {0, 4, 8}) {
      const Entropy one = entropy(logits.narrow(0, row, 1), labels.narrow(0, row, 1), row_scale.narrow(0, row, 1), 1);
      EXPECT_TRUE(equal_bits(one.losses, all.losses.narrow(0, row, 1)));
      EXPECT_TRUE(equal_bits(one.gradient, all.gradient.narrow(0, row, 1)));
      EXPECT_TRUE(equal_bits(one.first_choice, all.first_choice.narrow(0, row, 1)));
    }
    for (const float poison : {not_a_number, infinite}) {
      at::Tensor ill = logits.clone();
      ill[3][columns - 2] = poison;
      const Entropy with = entropy(ill, labels, row_scale);
      EXPECT_FALSE(with.losses[3].isfinite().item<bool>());
      EXPECT_FALSE(with.gradient[3].isfinite().all().item<bool>());
      EXPECT_EQ(with.first_choice[3].item<int64_t>(), columns - 2);
      EXPECT_TRUE(others_equal(with.losses, all.losses, 3));
      EXPECT_TRUE(others_equal(with.gradient, all.gradient, 3));
      EXPECT_TRUE(others_equal(with.first_choice, all.first_choice, 3));
    }
  }
}

TEST_P(RowKernels, CrossEntropyOfLogitsThatAreEqualOrMinusInfinite) {
  const int64_t columns = 4096;
  at::Tensor logits = at::zeros({3, columns}, dtype());
  logits[0][5] = -0.0f;                                                // as large as the others
  logits.narrow(0, 1, 1).narrow(1, 0, columns - 10).fill_(-infinite);  // whole parts of nothing else
  logits[2][100] = logits[2][4000] = 30;
  const at::Tensor labels = at::full({3}, static_cast<int32_t>(columns - 1), at::kInt);
  const Entropy ours = entropy(logits, labels, at::ones({3}, at::kFloat));
  EXPECT_NEAR(ours.losses[0].item<double>(), std::log(columns), 1e-5);
  EXPECT_NEAR(ours.losses[1].item<double>(), std::log(10), 1e-5);
  EXPECT_EQ(ours.gradient[1][0].item<float>(), 0);
  EXPECT_NEAR(ours.losses[2].item<double>(), 30 + std::log(2), 1e-4);
  EXPECT_EQ(ours.first_choice[0].item<int64_t>(), 0);
  EXPECT_EQ(ours.first_choice[1].item<int64_t>(), columns - 10);
  EXPECT_EQ(ours.first_choice[2].item<int64_t>(), 100);
}

TEST_P(RowKernels, TheHeadAgreesWithItselfOnTheCpuInChunks) {
  const int64_t rows = 150, hidden = 64, vocabulary = 992;
  const at::Tensor states = drawn({rows, hidden}, 1, dtype()), labels = random_labels(rows, vocabulary),
                   weight = drawn({vocabulary, hidden}, 2, dtype(), 0.3),
                   row_scale = at::full({rows}, 1.0 / rows, at::kFloat);
  const auto here = make_frozen_product({weight}, {}), there = make_frozen_product({placed(weight)}, {});
  for (const bool want_gradient : {false, true}) {
    const HeadResult expected = cross_entropy_head(states, labels, row_scale, *here, want_gradient, 1 << 30);
    const HeadResult ours =
        cross_entropy_head(placed(states), placed(labels), placed(row_scale), *there, want_gradient, 1);
    EXPECT_LE(relative_error(ours.losses.cpu(), expected.losses), 5 * limit());
    if (want_gradient) {
      EXPECT_LE(relative_error(ours.gradient.cpu(), expected.gradient), 5 * limit());
    } else {  // nearly equal logits may change places
      EXPECT_GE(ours.predictions.cpu().eq(expected.predictions).to(at::kDouble).mean().item<double>(), 0.95);
    }
  }
}

// ---- dropout ----

TEST_P(RowKernels, DropTheSameValuesAsTheCpu) {
  constexpr int64_t rows = 40;
  DropoutRows here{at::empty({rows}, at::kLong), at::empty({rows}, at::kInt)};
  for (int64_t row = 0; row < rows; ++row) {
    here.example_keys[row] = static_cast<int64_t>(mix64(static_cast<uint64_t>(row / 4)));  // some are negative
    here.positions[row] = static_cast<int32_t>(row % 4 * 1000);
  }
  const DropoutRows there{placed(here.example_keys), placed(here.positions)};
  for (const size_t group_count : {size_t{0}, size_t{1}, size_t{3}, size_t{64}, size_t{65}, size_t{150}}) {
    std::vector<DropoutGroup> groups;
    for (size_t i = 0; i < group_count; ++i) {  // they share rows; some have none
      const auto begin = static_cast<int64_t>(uniform_below(5, 2 * i, rows)),
                 count = static_cast<int64_t>(uniform_below(5, 2 * i + 1, static_cast<uint64_t>(rows - begin)));
      groups.push_back({{mix64(i), static_cast<double>(i % 8) / 8}, {begin, begin + count}});
    }
    for (const int64_t features : {3, 64, 97, 576, 4096}) {
      if (groups.size() > 3 && features > 100) continue;
      for (const int64_t beside : {0, 3}) {  // columns of x that the call does not see
        const at::Tensor wide = drawn({rows, features + beside}, 1, dtype()), x = wide.narrow(1, 0, features);
        const at::Tensor y = apply_dropout(groups, there, placed(wide).narrow(1, 0, features));
        int64_t row = 0;
        for (const DropoutGroup& group : groups) {
          const kernels::DropoutSite site{group.site.key, static_cast<float>(group.site.probability)};
          at::Tensor mask = at::empty({group.rows.count(), features}, at::kFloat);
          float* kept = mask.mutable_data_ptr<float>();
          for (int64_t r = group.rows.begin; r < group.rows.end; ++r) {
            const auto key = static_cast<uint64_t>(here.example_keys[r].item<int64_t>());
            const auto position = here.positions[r].item<int32_t>();
            for (int64_t f = 0; f < features; ++f)
              *kept++ = kernels::dropout_keeps(site, key, position, f) ? 1.0f : 0.0f;
          }
          const auto scale = static_cast<float>(1 / (1 - group.site.probability));
          const at::Tensor scaled = x.narrow(0, group.rows.begin, group.rows.count()).to(at::kFloat) * scale;
          const at::Tensor expected = (scaled * mask).to(dtype());
          EXPECT_TRUE(at::equal(y.narrow(0, row, group.rows.count()).cpu(), expected)) << features << " of " << row;
          row += group.rows.count();
        }
        EXPECT_EQ(y.size(0), row);
      }
    }
  }
}

}  // namespace
}  // namespace cotune::testing
