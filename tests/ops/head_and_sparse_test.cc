// The output head with its loss, and sparse deltas: our kernels against ATen, gradients against finite differences.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cross_entropy_head.h"
#include "ops/sparse_delta.h"
#include "ops/tensors.h"

namespace cotune::testing {
namespace {

constexpr int64_t everything = int64_t{1} << 30;

at::Tensor some_labels(int64_t rows, int64_t vocabulary) {
  at::Tensor labels = at::empty({rows}, at::kInt);
  for (int64_t row = 0; row < rows; ++row) {
    labels[row] = static_cast<int32_t>(uniform_below(9, static_cast<uint64_t>(row), static_cast<uint64_t>(vocabulary)));
  }
  return labels;
}

TEST(CrossEntropyHead, KernelsAgreeWithAtenInWholeAndInChunks) {
  for (const at::ScalarType dtype : kernel_dtypes()) {
    for (const int64_t rows : {1, 70, 150}) {
      for (const int64_t vocabulary : {96, 101}) {
        const at::Tensor weight = random_tensor({vocabulary, 64}, 1, dtype, 0.3), hidden = random_tensor({rows, 64}, 2, dtype);
        const at::Tensor labels = some_labels(rows, vocabulary), scale = random_tensor({rows}, 3, at::kFloat).abs();
        const auto head = make_frozen_product({weight}, {});
        const HeadResult ours = cross_entropy_head(hidden, labels, scale, *head, true, everything);
        const HeadResult chunked = cross_entropy_head(hidden, labels, scale, *head, true, 1);
        EXPECT_TRUE(at::equal(ours.losses, chunked.losses));
        EXPECT_TRUE(at::equal(ours.gradient, chunked.gradient));
        EXPECT_LE(relative_error(cross_entropy_head(hidden, labels, scale, *head, false, everything).losses, ours.losses), 1e-6);
        const PortableKernels portable;
        const auto dense = make_frozen_product({weight}, {});
        const HeadResult expected = cross_entropy_head(hidden, labels, scale, *dense, true, everything);
        EXPECT_LE(relative_error(ours.losses, expected.losses), tolerance(dtype));
        EXPECT_LE(relative_error(ours.gradient, expected.gradient), 2 * tolerance(dtype));
      }
    }
  }
}

TEST(CrossEntropyHead, GradientIsThatOfTheWeightedLoss) {
  const at::Tensor weight = random_tensor({13, 6}, 1, at::kDouble), hidden = random_tensor({5, 6}, 2, at::kDouble);
  const at::Tensor labels = some_labels(5, 13), scale = random_tensor({5}, 3, at::kDouble).abs();
  const auto head = make_frozen_product({weight}, {});
  const at::Tensor expected = numeric_gradient(hidden, [&] {
    return weighted_sum(cross_entropy_head(hidden, labels, scale, *head, false, everything).losses, scale);
  });
  EXPECT_LE(relative_error(cross_entropy_head(hidden, labels, scale, *head, true, everything).gradient, expected), 1e-8);
}

TEST(CrossEntropyHead, EvaluationTellsTheLikeliestToken) {
  const at::Tensor weight = random_tensor({40, 64}, 1, at::kDouble), hidden = random_tensor({9, 64}, 2, at::kDouble);
  const auto head = make_frozen_product({weight}, {});
  const HeadResult result =
      cross_entropy_head(hidden, some_labels(9, 40), at::ones({9}, at::kDouble), *head, false, everything);
  EXPECT_TRUE(at::equal(result.predictions, at::mm(hidden, weight.t()).argmax(1)));
}

SparseDelta some_delta(int64_t in, int64_t out, double density) {
  return select_entries(random_tensor({in, out}, 31, at::kDouble), density);
}

at::Tensor dense_of(const SparseDelta& delta, const at::Tensor& values) {
  at::Tensor dense = at::zeros({delta.in_features, delta.out_features}, at::kDouble);
  for (int64_t column = 0; column < delta.out_features; ++column) {
    for (int64_t i = delta.column_offsets[column].item<int64_t>(); i < delta.column_offsets[column + 1].item<int64_t>(); ++i) {
      dense[delta.row_indices[i].item<int64_t>()][column] = values[i].item<double>();
    }
  }
  return dense;
}

TEST(SparseDelta, AgreesWithTheDenseMatrixOnEitherPath) {
  std::vector<at::ScalarType> dtypes = kernel_dtypes();
  dtypes.push_back(at::kDouble);
  for (const at::ScalarType dtype : dtypes) {
    for (const bool portable : {false, true}) {
      std::optional<PortableKernels> scope;
      if (portable) scope.emplace();
      for (const double density : {1e-9, 0.05, 1.0}) {
        const SparseDelta delta = some_delta(40, 24, density);
        const at::Tensor values = random_tensor({delta.entry_count()}, 1, accumulation_dtype(dtype));
        const at::Tensor dense = dense_of(delta, values);
        const at::Tensor x = random_tensor({19, 40}, 2, dtype), dy = random_tensor({19, 24}, 3, dtype);
        at::Tensor y = random_tensor({19, 30}, 4, dtype), dx = random_tensor({19, 40}, 5, dtype);
        const at::Tensor y_start = y.clone(), dx_start = dx.clone();
        at::Tensor columns = y.narrow(1, 3, 24);
        add_sparse_delta(delta, values, x, columns);
        add_sparse_delta_input_gradient(delta, values, dy, dx);
        at::Tensor expected_y = y_start.to(at::kDouble);
        expected_y.narrow(1, 3, 24).add_(at::mm(x.to(at::kDouble), dense));
        EXPECT_LE(relative_error(y, expected_y), tolerance(dtype));
        EXPECT_LE(relative_error(dx, dx_start.to(at::kDouble) + at::mm(dy.to(at::kDouble), dense.t())), tolerance(dtype));
        at::Tensor gradient = at::ones({delta.entry_count()}, accumulation_dtype(dtype));
        add_sparse_delta_value_gradient(delta, x, dy, gradient);
        const at::Tensor full = at::mm(x.to(at::kDouble).t(), dy.to(at::kDouble));
        EXPECT_LE(relative_error(dense_of(delta, gradient - 1), full * dense_of(delta, at::ones_like(gradient))), 1e-5);
      }
    }
  }
}

TEST(SelectEntries, TakesTheLargestMagnitudesTiesToTheLowerPlace) {
  const at::Tensor importance = at::tensor({1.0, -3.0, 2.0, 3.0, -1.0, 0.0}, at::kDouble).reshape({2, 3});
  const auto kept = [&](double density) { return dense_of(select_entries(importance, density), at::ones({6}, at::kDouble)); };
  const auto expected = [](std::vector<double> values) { return at::tensor(values, at::kDouble).reshape({2, 3}); };
  EXPECT_TRUE(at::equal(kept(1e-9), expected({0, 1, 0, 0, 0, 0})));
  EXPECT_TRUE(at::equal(kept(0.34), expected({0, 1, 1, 1, 0, 0})));
  EXPECT_TRUE(at::equal(kept(0.6), expected({1, 1, 1, 1, 0, 0})));
  EXPECT_TRUE(at::equal(kept(1), expected({1, 1, 1, 1, 1, 1})));
}

TEST(SelectEntries, BySortingAreTheSame) {
  const at::Tensor distinct = random_tensor({37, 23}, 7, at::kDouble);
  const at::Tensor with_ties = (distinct * 2).round();
  for (const at::Tensor& importance : {distinct, with_ties, at::zeros({5, 9}, at::kDouble)}) {
    for (const double density : {1e-9, 0.03, 0.5, 1.0}) {
      const SparseDelta expected = select_entries(importance, density),
                        sorted = select_entries_by_sorting(importance, density);
      EXPECT_TRUE(at::equal(sorted.column_offsets, expected.column_offsets)) << density;
      EXPECT_TRUE(at::equal(sorted.row_indices, expected.row_indices)) << density;
      EXPECT_EQ(sorted.row_indices.scalar_type(), expected.row_indices.scalar_type());
      EXPECT_EQ(sorted.in_features, expected.in_features);
      EXPECT_EQ(sorted.out_features, expected.out_features);
    }
  }
}

}  // namespace
}  // namespace cotune::testing
