// Attention over ragged segments with grouped heads: our kernels against ATen, ATen against finite differences, rows in
// chunks against whole rows.

#include "ops/attention.h"
#include "ops/tensors.h"

namespace cotune::testing {
namespace {

std::vector<AttentionSegment> ragged(const std::vector<int64_t>& lengths) {
  std::vector<AttentionSegment> segments;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    segments.push_back({begin, length, 0, nullptr});
    begin += length;
  }
  return segments;
}

int64_t tokens_of(const std::vector<AttentionSegment>& segments) {
  return segments.empty() ? 0 : segments.back().begin + segments.back().count;
}

TEST(Attention, KernelsAgreeWithAtenOnRaggedRowsAndGroupedHeads) {
  for (const at::ScalarType dtype : kernel_dtypes()) {
    for (const AttentionShape shape : {AttentionShape{4, 4, 16}, AttentionShape{9, 3, 64}, AttentionShape{4, 1, 32}}) {
      for (const std::vector<int64_t>& lengths :
           std::vector<std::vector<int64_t>>{{1}, {65}, {1, 64, 3, 130, 1}, {200, 7}}) {
        const std::vector<AttentionSegment> segments = ragged(lengths);
        const at::Tensor qkv = random_tensor({tokens_of(segments), shape.qkv_columns()}, 1, dtype),
                         d = random_tensor({tokens_of(segments), shape.query_columns()}, 2, dtype);
        const AttentionResult ours = attention(qkv, segments, shape);
        const at::Tensor gradient = attention_backward(d, qkv, ours, segments, shape);
        const PortableKernels portable;
        const AttentionResult expected = attention(on_host(qkv), segments, shape);
        EXPECT_LE(relative_error(ours.out, expected.out), tolerance(dtype));
        if (ours.flash_lse.empty()) {
          EXPECT_LE(relative_error(ours.lse, expected.lse), tolerance(dtype));
        }
        const at::Tensor expected_gradient = attention_backward(on_host(d), on_host(qkv), expected, segments, shape);
        EXPECT_LE(relative_error(gradient, expected_gradient), 2 * tolerance(dtype));
      }
    }
  }
}

TEST(Attention, BackwardIsTheGradientOfForward) {
  const AttentionShape shape{4, 2, 4};
  const std::vector<AttentionSegment> segments = ragged({1, 5, 3});
  const at::Tensor qkv = random_tensor({9, shape.qkv_columns()}, 1, at::kDouble),
                   d = random_tensor({9, shape.query_columns()}, 2, at::kDouble);
  const at::Tensor expected = numeric_gradient(qkv, [&] { return weighted_sum(attention(qkv, segments, shape).out, d); });
  EXPECT_LE(relative_error(attention_backward(d, qkv, attention(qkv, segments, shape), segments, shape), expected), 1e-8);
}

/// A row in chunks: forward in order, backward in reverse.
void expect_chunks_agree(at::ScalarType dtype, int64_t length, int64_t chunk, double allowed) {
  const AttentionShape shape{4, 2, 32};
  const at::Tensor qkv = random_tensor({length, shape.qkv_columns()}, 1, dtype),
                   d = random_tensor({length, shape.query_columns()}, 2, dtype);
  const std::vector<AttentionSegment> whole = ragged({length});
  const AttentionResult expected = attention(qkv, whole, shape);
  const at::Tensor expected_gradient = attention_backward(d, qkv, expected, whole, shape);
  ChainCache cache;
  cache.keys = at::empty({length, shape.kv_columns()}, qkv.options());
  cache.values = at::empty_like(cache.keys);
  std::vector<AttentionResult> results;
  for (int64_t begin = 0; begin < length; begin += chunk) {
    const int64_t count = std::min(chunk, length - begin);
    results.push_back(attention(qkv.narrow(0, begin, count).contiguous(), {{0, count, begin, &cache}}, shape));
    EXPECT_LE(relative_error(results.back().out, expected.out.narrow(0, begin, count)), allowed) << begin;
  }
  for (int64_t begin = (length - 1) / chunk * chunk; begin >= 0; begin -= chunk) {
    const int64_t count = std::min(chunk, length - begin);
    const at::Tensor gradient =
        attention_backward(d.narrow(0, begin, count).contiguous(), qkv.narrow(0, begin, count).contiguous(),
                           results[static_cast<size_t>(begin / chunk)], {{0, count, begin, &cache}}, shape);
    EXPECT_LE(relative_error(gradient, expected_gradient.narrow(0, begin, count)), allowed) << begin;
  }
}

TEST(Attention, InChunksEqualsTheWholeRow) {
  for (const int64_t chunk : {1, 7, 64, 100}) expect_chunks_agree(at::kDouble, 150, chunk, 1e-11);
  for (const int64_t chunk : {130, 257}) expect_chunks_agree(at::kDouble, 400, chunk, 1e-11);  // across dense_attention_queries
  for (const at::ScalarType dtype : kernel_dtypes()) {
    const double allowed = test_device().is_cpu() ? 0 : 2 * tolerance(dtype);  // our kernels: to the bit
    for (const int64_t chunk : {64, 128}) expect_chunks_agree(dtype, 300, chunk, allowed);
  }
}

TEST(Rotation, KernelsAgreeWithAtenAndTheBackwardUndoesIt) {
  const std::vector<double> frequencies{1, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001, 0.0003};
  const at::Tensor positions = on_device(at::arange(0, 11, at::kInt) * 7);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const RotaryTable table = rotary_table(frequencies, 100, dtype, test_device());
    const at::Tensor x = random_tensor({11, 5 * 16}, 1, dtype);
    at::Tensor ours = x.clone();
    rotate_in_place(ours, positions, table, 4, 16, 1);
    EXPECT_TRUE(at::equal(ours.narrow(1, 64, 16), x.narrow(1, 64, 16))) << "the fifth head is not to be rotated";
    at::Tensor undone = ours.clone();
    rotate_in_place(undone, positions, table, 4, 16, -1);
    EXPECT_LE(relative_error(undone, x), tolerance(dtype));
    const PortableKernels portable;
    at::Tensor expected = on_host(x).clone();
    rotate_in_place(expected, on_host(positions), {on_host(table.cosine), on_host(table.sine)}, 4, 16, 1);
    EXPECT_LE(relative_error(ours, expected), tolerance(dtype));
  }
}

}  // namespace
}  // namespace cotune::testing
