// The output head with its loss, and sparse deltas: our kernels against ATen, gradients against finite differences.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/cross_entropy_head.h"
#include "ops/backend.h"
#include "ops/memory.h"
#include "ops/select_entries.h"
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
  return on_device(labels);
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
        EXPECT_TRUE(same_products(ours.losses, chunked.losses));
        EXPECT_TRUE(same_products(ours.gradient, chunked.gradient));
        EXPECT_LE(relative_error(cross_entropy_head(hidden, labels, scale, *head, false, everything).losses, ours.losses), 1e-6);
        const PortableKernels portable;
        const auto dense = make_frozen_product({on_host(weight)}, {});
        const HeadResult expected =
            cross_entropy_head(on_host(hidden), on_host(labels), on_host(scale), *dense, true, everything);
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
      cross_entropy_head(hidden, some_labels(9, 40), on_device(at::ones({9}, at::kDouble)), *head, false, everything);
  EXPECT_TRUE(same_bits(result.predictions, at::mm(exact(hidden), exact(weight).t()).argmax(1)));
}

SparseDelta some_delta(int64_t in, int64_t out, double density) {
  return select_entries(random_tensor({in, out}, 31, at::kDouble), kept_of(in * out, density));
}

at::Tensor dense_of(const SparseDelta& delta, const at::Tensor& values) {
  const at::Tensor dense = at::zeros({delta.in_features, delta.out_features}, at::kDouble), wide = exact(values);
  const at::Tensor column_offsets = on_host(delta.column_offsets), row_indices = on_host(delta.row_indices);
  const int64_t* offsets = column_offsets.const_data_ptr<int64_t>();
  for (int64_t column = 0; column < delta.out_features; ++column) {
    for (int64_t i = offsets[column]; i < offsets[column + 1]; ++i) {
      dense.mutable_data_ptr<double>()[row_indices.const_data_ptr<int32_t>()[i] * delta.out_features + column] =
          wide.const_data_ptr<double>()[i];
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
        add_sparse_deltas({{&delta, values, {0, 19}, 0, 3}}, x, y);
        add_sparse_delta_input_gradients({{&delta, values, {0, 19}}}, dy, dx);
        at::Tensor expected_y = exact(y_start);
        expected_y.narrow(1, 3, 24).add_(at::mm(exact(x), dense));
        EXPECT_LE(relative_error(y, expected_y), tolerance(dtype));
        // A stream in the accumulation dtype is not rounded.
        const at::Tensor stream_start = random_tensor({19, 30}, 4, accumulation_dtype(dtype), 1e3);
        at::Tensor stream = stream_start.clone(), expected_stream = exact(stream_start);
        add_sparse_deltas({{&delta, values, {0, 19}, 0, 3}}, x, stream);
        expected_stream.narrow(1, 3, 24).add_(at::mm(exact(x), dense));
        EXPECT_EQ(stream.scalar_type(), accumulation_dtype(dtype));
        EXPECT_LE(relative_error(stream, expected_stream), 2e-4) << dtype << portable;
        EXPECT_TRUE(at::equal(stream.narrow(1, 0, 3), stream_start.narrow(1, 0, 3)));
        EXPECT_LE(relative_error(dx, exact(dx_start) + at::mm(exact(dy), dense.t())), tolerance(dtype));
        at::Tensor gradient = at::ones_like(values);
        add_sparse_delta_value_gradients({{&delta, {0, 19}, 0, gradient}}, x, dy);
        const at::Tensor full = at::mm(exact(x).t(), exact(dy));
        EXPECT_LE(relative_error(dense_of(delta, gradient - 1), full * dense_of(delta, at::ones_like(gradient))), 1e-5);
      }
    }
  }
}

/// Jobs side by side, two of them with two sites; one job's rows are not numbers, and neither are another's values.
TEST(SparseDelta, OfManyJobsIsThatOfEachAloneAndKeepsWhatIsNoNumberInItsRows) {
  std::vector<at::ScalarType> dtypes = kernel_dtypes();
  dtypes.push_back(at::kDouble);
  for (const at::ScalarType dtype : dtypes) {
    for (const bool portable : {false, true}) {
      std::optional<PortableKernels> scope;
      if (portable) scope.emplace();
      const SparseDelta narrow = some_delta(40, 24, 0.2), wide = some_delta(40, 32, 0.1);
      struct Site {
        const SparseDelta* delta;
        RowRange rows;
        int64_t column;
      };
      const std::vector<Site> sites{{&narrow, {0, 300}, 0}, {&wide, {300, 310}, 24}, {&narrow, {320, 400}, 0}, {&wide, {0, 300}, 24},
                                    {&narrow, {300, 310}, 0}};
      at::Tensor x = random_tensor({400, 40}, 2, dtype), dy = random_tensor({400, 56}, 3, dtype);
      x.narrow(0, 300, 10).fill_(NAN);
      dy.narrow(0, 300, 10).fill_(INFINITY);
      const at::Tensor y_start = random_tensor({400, 56}, 4, dtype), dx_start = random_tensor({400, 40}, 5, dtype);
      std::vector<SparseDeltaGroup> forward, backward;
      std::vector<at::Tensor> gradients;
      std::vector<SparseDeltaGradient> sums;
      for (const Site& site : sites) {
        at::Tensor values = random_tensor({site.delta->entry_count()}, 7, accumulation_dtype(dtype));
        if (site.rows.begin == 320) values[5] = NAN;
        forward.push_back({site.delta, values, site.rows, 0, site.column});
        backward.push_back({site.delta, values, site.rows, site.column, 0});
        gradients.push_back(at::ones_like(values));
        for (int64_t begin = site.rows.begin; begin < site.rows.end; begin += 256) {  // atoms
          sums.push_back({site.delta, {begin, std::min(begin + 256, site.rows.end)}, site.column, gradients.back()});
        }
      }
      at::Tensor y = y_start.clone(), dx = dx_start.clone();
      add_sparse_deltas(forward, x, y);
      add_sparse_delta_input_gradients(backward, dy, dx);
      add_sparse_delta_value_gradients(sums, x, dy);
      at::Tensor expected_y = exact(y_start).clone(), expected_dx = exact(dx_start).clone();
      for (size_t i : {0, 3}) {
        const at::Tensor dense = dense_of(*sites[i].delta, forward[i].values);
        const at::Tensor rows = exact(x.narrow(0, 0, 300));
        const at::Tensor incoming = exact(dy.narrow(0, 0, 300).narrow(1, sites[i].column, dense.size(1)));
        expected_y.narrow(0, 0, 300).narrow(1, sites[i].column, dense.size(1)).add_(at::mm(rows, dense));
        expected_dx.narrow(0, 0, 300).add_(at::mm(incoming, dense.t()));
        const at::Tensor full = at::mm(rows.t(), incoming) * dense_of(*sites[i].delta, at::ones_like(gradients[i]));
        EXPECT_LE(relative_error(dense_of(*sites[i].delta, gradients[i] - 1), full), 1e-5);
      }
      const at::Tensor own_y = y.narrow(0, 0, 300), own_dx = dx.narrow(0, 0, 300);
      EXPECT_LE(relative_error(own_y, expected_y.narrow(0, 0, 300)), tolerance(dtype));
      EXPECT_LE(relative_error(own_dx, expected_dx.narrow(0, 0, 300)), 2 * tolerance(dtype)) << "rounded per site";
      EXPECT_TRUE(gradients[2].isfinite().all().item<bool>()) << "values do not enter their gradients";
      EXPECT_TRUE(gradients[1].isfinite().logical_not().all().item<bool>());
      // Each job alone.
      at::Tensor alone = y_start.clone(), alone_dx = dx_start.clone();
      for (const std::vector<size_t>& job : {std::vector<size_t>{2}, {0, 3}, {1, 4}}) {
        std::vector<SparseDeltaGroup> own, own_backward;
        for (const size_t i : job) {
          own.push_back(forward[i]);
          own_backward.push_back(backward[i]);
        }
        add_sparse_deltas(own, x, alone);
        add_sparse_delta_input_gradients(own_backward, dy, alone_dx);
      }
      const auto same = [&](const at::Tensor& a, const at::Tensor& b) {
        if (use_kernels(x) || gpu_kernels_for(x) != nullptr) return at::allclose(a, b, 0, 0, /*equal_nan=*/true);
        // By ATen a device adds a row's entries in any order: then one rounding of bf16 apart.
        const double of_order = x.is_cpu() || dtype != at::kBFloat16 ? 1e-5 : 1.0 / 64;
        return at::allclose(a, b, of_order, of_order / 10, /*equal_nan=*/true);
      };
      EXPECT_TRUE(same(alone, y)) << dtype << (portable ? ", portable" : "");
      EXPECT_TRUE(same(alone_dx, dx)) << dtype << (portable ? ", portable" : "");
    }
  }
}

/// The gradients of kept entries come without one of the whole weight, on ATen's path too.
TEST(SparseDelta, NeverTakesMemoryOfTheWeightsSize) {
  SKIP_ON_A_DEVICE() << "counts the host's memory";
  install_counting_allocator();
  const PortableKernels portable;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const int64_t features = 2048, weight_bytes = features * features * 4;
    const at::Tensor importance = (at::arange(features * features, at::kDouble) * 7919).remainder(4194301);
    const SparseDelta delta = select_entries(importance.reshape({features, features}), kept_of(features * features, 0.005));
    at::Tensor values = random_tensor({delta.entry_count()}, 1, at::kFloat), gradient = at::zeros_like(values);
    const at::Tensor x = random_tensor({48, features}, 2, dtype), dy = random_tensor({48, features}, 3, dtype);
    at::Tensor y = at::zeros_like(x);
    const auto peak_of = [&](const auto& call) {
      reset_memory_peaks();
      const int64_t before = memory_usage().live_bytes();
      call();
      return memory_usage().peak_live_bytes - before;
    };
    EXPECT_LT(peak_of([&] { add_sparse_deltas({{&delta, values, {0, 48}}}, x, y); }), weight_bytes / 2) << dtype;
    EXPECT_LT(peak_of([&] { add_sparse_delta_input_gradients({{&delta, values, {0, 48}}}, x, y); }), weight_bytes / 2) << dtype;
    EXPECT_LT(peak_of([&] { add_sparse_delta_value_gradients({{&delta, {0, 48}, 0, gradient}}, x, dy); }), weight_bytes / 2)
        << dtype;
  }
}

TEST(SparseDelta, HasItsEntriesByRowToo) {
  for (const double density : {1e-9, 0.05, 0.4, 1.0}) {
    const SparseDelta delta = some_delta(41, 24, density);
    const EntriesByRow& by_row = entries_by_row(delta);
    const at::Tensor values = random_tensor({delta.entry_count()}, 1, at::kDouble);
    // By rows of Δ they are those of Δᵀ by its columns.
    const SparseDelta transposed{delta.out_features, delta.in_features, by_row.row_offsets, by_row.column_indices};
    EXPECT_TRUE(at::equal(dense_of(transposed, values.index_select(0, by_row.places)), dense_of(delta, values).t())) << density;
    EXPECT_EQ(by_row.row_offsets.scalar_type(), at::kLong);
    EXPECT_EQ(by_row.row_offsets[41].item<int64_t>(), delta.entry_count());
    EXPECT_EQ(by_row.column_indices.scalar_type(), at::kInt);
    const at::Tensor places = on_host(by_row.places), row_offsets = on_host(by_row.row_offsets);
    const int64_t* offsets = row_offsets.const_data_ptr<int64_t>();
    for (int64_t row = 0; row < 41; ++row) {
      const at::Tensor of_row = places.narrow(0, offsets[row], offsets[row + 1] - offsets[row]);
      EXPECT_TRUE(of_row.diff().gt(0).all().item<bool>()) << "columns ascend within a row";
    }
    EXPECT_EQ(&entries_by_row(delta), &by_row) << "made once";
  }
}

TEST(SelectEntries, TakesTheLargestMagnitudesTiesToTheLowerPlace) {
  const at::Tensor importance = on_device(at::tensor({1.0, -3.0, 2.0, 3.0, -1.0, 0.0}, at::kDouble).reshape({2, 3}));
  const auto kept = [&](int64_t count) { return dense_of(select_entries(importance, count), at::ones({6}, at::kDouble)); };
  const auto expected = [](std::vector<double> values) { return at::tensor(values, at::kDouble).reshape({2, 3}); };
  EXPECT_TRUE(at::equal(kept(1), expected({0, 1, 0, 0, 0, 0})));
  EXPECT_TRUE(at::equal(kept(3), expected({0, 1, 1, 1, 0, 0})));
  EXPECT_TRUE(at::equal(kept(4), expected({1, 1, 1, 1, 0, 0})));
  EXPECT_TRUE(at::equal(kept(6), expected({1, 1, 1, 1, 1, 1})));
}

TEST(SelectEntries, BySortingAreTheSame) {
  const at::Tensor distinct = random_tensor({37, 23}, 7, at::kDouble);
  const at::Tensor with_ties = (distinct * 2).round();
  for (const at::Tensor& importance : {distinct, with_ties, on_device(at::zeros({5, 9}, at::kDouble))}) {
    for (const double density : {1e-9, 0.03, 0.5, 1.0}) {
      const SparseDelta expected = select_entries(on_host(importance), kept_of(importance.numel(), density)),
                        sorted = select_entries_by_sorting(importance, kept_of(importance.numel(), density));
      EXPECT_TRUE(same_bits(sorted.column_offsets, expected.column_offsets)) << density;
      EXPECT_TRUE(same_bits(sorted.row_indices, expected.row_indices)) << density;
      EXPECT_EQ(sorted.row_indices.scalar_type(), expected.row_indices.scalar_type());
      EXPECT_EQ(sorted.in_features, expected.in_features);
      EXPECT_EQ(sorted.out_features, expected.out_features);
    }
  }
}

/// In the order of rows, and of columns within a row.
std::vector<int64_t> kept_by_a_stable_sort(const at::Tensor& importance, int64_t keep) {
  const at::Tensor magnitude = exact(importance).abs().contiguous();
  const double* value = magnitude.const_data_ptr<double>();
  std::vector<int64_t> order(static_cast<size_t>(magnitude.numel()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [value](int64_t a, int64_t b) { return value[a] > value[b]; });
  order.resize(static_cast<size_t>(keep));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<int64_t> places_of(const SparseDelta& delta) {
  std::vector<int64_t> places;
  const int64_t* offsets = delta.column_offsets.const_data_ptr<int64_t>();
  const int32_t* rows = delta.row_indices.const_data_ptr<int32_t>();
  for (int64_t column = 0; column < delta.out_features; ++column) {
    for (int64_t entry = offsets[column]; entry < offsets[column + 1]; ++entry) {
      EXPECT_TRUE(entry == offsets[column] || rows[entry - 1] < rows[entry]) << "rows ascend within a column";
      places.push_back(rows[entry] * delta.out_features + column);
    }
  }
  std::sort(places.begin(), places.end());
  return places;
}

TEST(SelectEntries, AreThoseOfAStableSort) {
  constexpr int64_t rows = 19, columns = 31, values = rows * columns;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor distinct = on_host(random_tensor({rows, columns}, 11, dtype)), ties = (distinct * 2).round();
    const at::Tensor edges = ties.clone();
    edges[0][3].fill_(-0.0);
    edges[7][0].fill_(-std::numeric_limits<double>::infinity());
    edges[18][30].fill_(std::numeric_limits<double>::infinity());
    // Neighbours, which differ in their last bits alone; in bf16 all are ties.
    const at::Tensor shuffled = (at::arange(values, at::kDouble) * 7919).remainder(values).reshape({rows, columns});
    const at::Tensor neighbours = (shuffled * (dtype == at::kDouble ? 0x1p-52 : 0x1p-23) + 1).to(dtype);
    for (const at::Tensor& importance : {distinct, ties, edges, neighbours, distinct.t(), at::zeros({rows, columns}, dtype)}) {
      for (const int64_t keep : {int64_t{1}, int64_t{2}, int64_t{100}, values / 2, values - 1, values}) {
        const SparseDelta delta = select_entries(importance, keep);
        EXPECT_EQ(delta.in_features, importance.size(0));
        EXPECT_EQ(delta.out_features, importance.size(1));
        EXPECT_EQ(delta.entry_count(), keep);
        EXPECT_EQ(places_of(delta), kept_by_a_stable_sort(importance, keep)) << dtype << ", " << keep;
      }
    }
  }
}

TEST(SelectEntries, TakeNoTensorOfTheWeightsSize) {
  SKIP_ON_A_DEVICE() << "counts the host's memory";
  install_counting_allocator();
  const int64_t features = 2048, weight_bytes = features * features * 4;
  const at::Tensor importance = (at::arange(features * features, at::kFloat) * 7919).remainder(4194301).reshape({features, features});
  reset_memory_peaks();
  const int64_t before = memory_usage().live_bytes();
  const SparseDelta delta = select_entries(importance, kept_of(features * features, 0.005));
  EXPECT_LT(memory_usage().peak_live_bytes - before, weight_bytes / 8);
  EXPECT_EQ(delta.entry_count(), kept_of(features * features, 0.005));
}

}  // namespace
}  // namespace cotune::testing
