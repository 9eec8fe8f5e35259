// The output head with its vocabulary divided among ranks, against the whole one.
#include "ops/sharded_head.h"

#include <barrier>
#include <thread>

#include "ops/backend.h"
#include "ops/tensors.h"

namespace cotune::testing {
namespace {

/// Sums what threads bring, in their order.
class SumOfThreads {
 public:
  explicit SumOfThreads(int64_t count) : brought_(static_cast<size_t>(count)), barrier_(count) {}
  void all_reduce(int64_t index, at::Tensor& values) {
    brought_[static_cast<size_t>(index)] = values.clone();
    barrier_.arrive_and_wait();
    at::Tensor sum = at::zeros_like(values);
    for (const at::Tensor& each : brought_) sum.add_(each);
    values.copy_(sum);
    barrier_.arrive_and_wait();
  }

 private:
  std::vector<at::Tensor> brought_;
  std::barrier<> barrier_;
};

constexpr int64_t everything = int64_t{1} << 30;

std::vector<HeadResult> on_ranks(int64_t count, const at::Tensor& hidden, const at::Tensor& labels, const at::Tensor& scale,
                                 const at::Tensor& weight, bool want_gradient, int64_t workspace) {
  std::vector<HeadResult> results(static_cast<size_t>(count));
  SumOfThreads sum(count);
  std::vector<std::thread> threads;
  for (int64_t index = 0; index < count; ++index) {
    threads.emplace_back([&, index] {
      const int64_t begin = weight.size(0) * index / count, end = weight.size(0) * (index + 1) / count;
      const auto head = make_frozen_product({weight.narrow(0, begin, end - begin).clone()}, {});
      const auto all_reduce = [&, index](at::Tensor& values) { sum.all_reduce(index, values); };
      const HeadShard shard{index, count, begin, (weight.size(0) + count - 1) / count, all_reduce, [&](at::Tensor partial) { return all_reduce(partial), partial; }};
      results[static_cast<size_t>(index)] = sharded_cross_entropy_head(hidden, labels, scale, *head, shard, want_gradient, workspace);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

at::Tensor some_labels(int64_t rows, int64_t vocabulary) {
  at::Tensor labels = at::empty({rows}, at::kInt);
  for (int64_t row = 0; row < rows; ++row) {
    labels[row] = static_cast<int32_t>(uniform_below(9, static_cast<uint64_t>(row), static_cast<uint64_t>(vocabulary)));
  }
  return on_device(labels);
}

TEST(ShardedHead, GivesLossesAndGradientsOfTheWholeOne) {
  std::vector<at::ScalarType> dtypes = kernel_dtypes();
  dtypes.push_back(at::kDouble);
  for (const at::ScalarType dtype : dtypes) {
    for (const auto& [vocabulary, count] : {std::pair<int64_t, int64_t>(192, 3), {101, 2}, {97, 4}}) {
      for (const int64_t workspace : {everything, int64_t{1}}) {
        const at::ScalarType wide = accumulation_dtype(dtype);
        const at::Tensor weight = random_tensor({vocabulary, 64}, 1, dtype, 0.3), hidden = random_tensor({150, 64}, 2, dtype, 3);
        const at::Tensor labels = some_labels(150, vocabulary), scale = random_tensor({150}, 3, wide).abs();
        const auto whole = make_frozen_product({weight}, {});
        const HeadResult expected = cross_entropy_head(hidden, labels, scale, *whole, true, everything);
        const double bound = dtype == at::kDouble ? 1e-13 : tolerance(dtype);
        for (const HeadResult& result : on_ranks(count, hidden, labels, scale, weight, true, workspace)) {
          EXPECT_LE(relative_error(result.losses, expected.losses), bound) << dtype << " " << vocabulary;
          EXPECT_LE(relative_error(result.gradient, expected.gradient), 2 * bound) << dtype << " " << vocabulary;
        }
      }
    }
  }
}

/// The least workspace that holds so many rows of the smaller share, and fewer of the larger.
int64_t workspace_between(int64_t smaller_share, int64_t rows, at::ScalarType dtype) {
  int64_t workspace = 1;
  while (sharded_head_rows(smaller_share, dtype, test_device(), workspace) < rows) ++workspace;
  EXPECT_LT(sharded_head_rows(smaller_share + 1, dtype, test_device(), workspace), rows);
  return workspace;
}

TEST(ShardedHead, HasChunksOfEqualRowsOnRanksWithUnequalShares) {
  std::vector<at::ScalarType> dtypes = kernel_dtypes();
  dtypes.push_back(at::kDouble);
  for (const at::ScalarType dtype : dtypes) {
    for (const auto& [vocabulary, count] : {std::pair<int64_t, int64_t>(101, 2), {98, 4}}) {
      const int64_t rows = 300, workspace = workspace_between(vocabulary / count, 128, dtype);
      const at::ScalarType wide = accumulation_dtype(dtype);
      const at::Tensor weight = random_tensor({vocabulary, 64}, 1, dtype, 0.3), hidden = random_tensor({rows, 64}, 2, dtype, 3);
      const at::Tensor labels = some_labels(rows, vocabulary), scale = random_tensor({rows}, 3, wide).abs();
      const auto whole = make_frozen_product({weight}, {});
      const HeadResult expected = cross_entropy_head(hidden, labels, scale, *whole, true, everything);
      const double bound = dtype == at::kDouble ? 1e-13 : tolerance(dtype);
      for (const bool want_gradient : {true, false}) {
        for (const HeadResult& result : on_ranks(count, hidden, labels, scale, weight, want_gradient, workspace)) {
          EXPECT_LE(relative_error(result.losses, expected.losses), bound) << dtype << " " << vocabulary;
          if (want_gradient) {
            EXPECT_LE(relative_error(result.gradient, expected.gradient), 2 * bound) << dtype << " " << vocabulary;
          }
        }
      }
    }
  }
}

/// The processes of a group may run on unlike processors.
TEST(ShardedHead, HasChunksThatFollowFromNoHostsKernels) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat, at::kDouble}) {
    const auto rows = [&] { return sharded_head_rows(16385, dtype, test_device(), int64_t{48} << 20); };
    const int64_t with_kernels = rows();
    const PortableKernels portable;
    EXPECT_EQ(rows(), with_kernels) << dtype;
  }
}

TEST(ShardedHead, PredictsTheFirstOfTheLikeliestTokens) {
  at::Tensor weight = random_tensor({50, 64}, 1, at::kDouble);
  weight[40].copy_(weight[3]);  // a tie between two ranks
  const at::Tensor hidden = random_tensor({30, 64}, 2, at::kDouble), labels = some_labels(30, 50), scale = on_device(at::ones({30}, at::kDouble));
  hidden[7].copy_(4 * weight[3]);
  const auto whole = make_frozen_product({weight}, {});
  const HeadResult expected = cross_entropy_head(hidden, labels, scale, *whole, false, everything);
  EXPECT_EQ(expected.predictions[7].item<int64_t>(), 3);
  for (const HeadResult& result : on_ranks(3, hidden, labels, scale, weight, false, everything)) {
    EXPECT_TRUE(same_bits(result.predictions, expected.predictions));
    EXPECT_LE(relative_error(result.losses, expected.losses), 1e-13);
  }
}

}  // namespace
}  // namespace cotune::testing
