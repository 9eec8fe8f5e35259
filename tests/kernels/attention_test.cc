#include "kernels/attention.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <memory>

#include "kernels/attention_kernels.h"
#include "kernels/attention_scratch.h"
#include "kernels/reference_values.h"

namespace cotune::kernels {
namespace {

/// Which kernel, called directly or as the dispatch chooses.
enum class Kernel { f32, bf16, f32_avx2, bf16_avx2, f32_avx512, bf16_avx512, bf16_avx512_widened };

std::string name_of(Kernel kernel) {
  constexpr std::array names{"f32", "bf16", "f32_avx2", "bf16_avx2", "f32_avx512", "bf16_avx512", "bf16_avx512_widened"};
  return names[static_cast<size_t>(kernel)];
}
DType dtype_of(Kernel kernel) { return name_of(kernel).starts_with("f32") ? DType::f32 : DType::bf16; }

/// Those that are called directly; null: as the dispatch chooses.
const AttentionKernels* direct(Kernel kernel) {
  switch (kernel) {
    case Kernel::f32_avx2: return &attention_f32_avx2();
    case Kernel::bf16_avx2: return &attention_bf16_avx2();
    case Kernel::f32_avx512: return &attention_f32_avx512();
    case Kernel::bf16_avx512: return &attention_bf16_avx512();
    case Kernel::bf16_avx512_widened: return &attention_bf16_avx512_widened();
    default: return nullptr;
  }
}

bool can_run(Kernel kernel) {
  const CpuFeatures& features = cpu_features();
  if (kernel == Kernel::f32_avx512 || kernel == Kernel::bf16_avx512_widened) return features.avx512;
  if (kernel == Kernel::bf16_avx512) return features.avx512_bf16;
  return features.avx2;
}

struct Row {
  int64_t tokens;
};

/// Rows in one microbatch: qkv [tokens, (heads + 2 kv_heads) · head_dim] and everything that comes out of it.
struct Batch {
  Batch(Kernel k, AttentionShape s, std::vector<int64_t> row_lengths, uint64_t key)
      : kernel(k), shape(s), lengths(std::move(row_lengths)) {
    for (const int64_t length : lengths) tokens += length;
    qkv = Values::normal(dtype(), tokens * qkv_stride(), key);
    dout = Values::normal(dtype(), tokens * q_stride(), key + 1);
    out = Values(dtype(), tokens * q_stride());
    dqkv = Values(dtype(), tokens * qkv_stride());
    lse.resize(tokens * shape.heads);
  }

  DType dtype() const { return dtype_of(kernel); }
  int64_t q_stride() const { return shape.heads * shape.head_dim; }
  int64_t kv_columns() const { return shape.kv_heads * shape.head_dim; }
  int64_t qkv_stride() const { return q_stride() + 2 * kv_columns(); }

  void forward(std::span<const AttentionSegment> segments) {
    if (direct(kernel) == nullptr) {
      attention_forward(dtype(), shape, segments, qkv.data(), qkv_stride(), out.data(), q_stride(), lse.data());
      return;
    }
    AttentionCall call = arguments(segments, {});
    for (const auto& task : plan_attention_forward(shape, segments, 2)) {
      const auto scratch = scratch_of(&AttentionWords::of_forward, task);
      direct(kernel)->forward(call, task, scratch.get());
    }
  }
  void backward(std::span<const AttentionSegment> segments, std::span<const AttentionKvGradient> gradients) {
    if (direct(kernel) == nullptr) {
      attention_backward(dtype(), shape, segments, gradients, qkv.data(), qkv_stride(), out.data(), q_stride(),
                         dout.data(), q_stride(), lse.data(), dqkv.data(), qkv_stride());
      return;
    }
    AttentionCall call = arguments(segments, gradients);
    for (const auto& task : plan_attention_backward(shape, segments, 3)) {
      const auto scratch = scratch_of(&AttentionWords::of_backward, task);
      direct(kernel)->backward(call, task, scratch.get());
    }
  }

  void run_whole() {
    std::vector<AttentionSegment> segments;
    std::vector<AttentionKvGradient> gradients;
    int64_t begin = 0;
    for (const int64_t length : lengths) {
      segments.push_back({begin, length, 0, qkv.at(begin * qkv_stride() + q_stride()),
                          qkv.at(begin * qkv_stride() + q_stride() + kv_columns()), qkv_stride()});
      gradients.push_back({dqkv.at(begin * qkv_stride() + q_stride()),
                           dqkv.at(begin * qkv_stride() + q_stride() + kv_columns()), qkv_stride(), nullptr, nullptr});
      begin += length;
    }
    forward(segments);
    backward(segments, gradients);
  }

  /// The only row as a chain of chunks that end at `cuts`.
  void run_chain(const std::vector<int64_t>& cuts) {
    std::vector<AttentionSegment> chunks;
    int64_t begin = 0;
    for (const int64_t end : cuts) {
      chunks.push_back({begin, end - begin, begin, qkv.at(q_stride()), qkv.at(q_stride() + kv_columns()), qkv_stride()});
      begin = end;
    }
    for (const AttentionSegment& chunk : chunks) forward({&chunk, 1});
    std::vector<float> dk(tokens * kv_columns()), dv(tokens * kv_columns());
    for (size_t c = chunks.size(); c-- > 0;) {
      const AttentionKvGradient gradient = {nullptr, nullptr, 0, dk.data(), dv.data()};
      backward({&chunks[c], 1}, {&gradient, 1});
      const int64_t from = chunks[c].position;
      for (int64_t t = from; t < from + chunks[c].query_count; ++t) {
        for (int64_t column = 0; column < kv_columns(); ++column) {
          const int64_t place = t * qkv_stride() + q_stride() + column;
          dqkv.set(place, dk[static_cast<size_t>(t * kv_columns() + column)]);
          dqkv.set(place + kv_columns(), dv[static_cast<size_t>(t * kv_columns() + column)]);
        }
      }
    }
  }

  struct Release {
    void operator()(uint32_t* scratch) const { MemorySource::heap().release(nullptr, scratch, 0); }
  };
  /// No more than what the task is to work in.
  std::unique_ptr<uint32_t, Release> scratch_of(int64_t (AttentionWords::*words)(int64_t) const, const AttentionTask& task) const {
    const AttentionWords sizes = attention_words(direct(kernel)->elements_per_word, shape);
    const int64_t count = (sizes.*words)(task.key_blocks.end - task.key_blocks.begin);
    return std::unique_ptr<uint32_t, Release>(static_cast<uint32_t*>(MemorySource::heap().allocate(nullptr, size_t(count) * 4)));
  }

  AttentionCall arguments(std::span<const AttentionSegment> segments, std::span<const AttentionKvGradient> gradients) {
    return {shape,       segments,   gradients,  qkv.data(),  qkv_stride(), out.data(), q_stride(),
            dout.data(), q_stride(), lse.data(), dqkv.data(), qkv_stride()};
  }

  Kernel kernel;
  AttentionShape shape;
  std::vector<int64_t> lengths;
  int64_t tokens = 0;
  Values qkv, dout, out, dqkv;
  std::vector<float> lse;
};

struct Expected {
  std::vector<double> out, lse, dqkv;
};

Expected reference(const Batch& batch) {
  const AttentionShape& shape = batch.shape;
  const int64_t d = shape.head_dim, q_stride = batch.q_stride(), stride = batch.qkv_stride();
  Expected e{std::vector<double>(batch.tokens * q_stride), std::vector<double>(batch.tokens * shape.heads),
             std::vector<double>(batch.tokens * stride)};
  int64_t begin = 0;
  for (const int64_t length : batch.lengths) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t kv = h / (shape.heads / shape.kv_heads);
      const int64_t q_at = h * d, k_at = q_stride + kv * d, v_at = q_stride + batch.kv_columns() + kv * d;
      for (int64_t i = 0; i < length; ++i) {
        const int64_t row = begin + i;
        std::vector<double> p(i + 1), dp(i + 1);
        double highest = -1e300, sum = 0, delta = 0;
        for (int64_t j = 0; j <= i; ++j) {
          for (int64_t c = 0; c < d; ++c) {
            p[j] += batch.qkv[row * stride + q_at + c] * batch.qkv[(begin + j) * stride + k_at + c];
            dp[j] += batch.dout[row * q_stride + q_at + c] * batch.qkv[(begin + j) * stride + v_at + c];
          }
          p[j] *= double(shape.scale);
          highest = std::max(highest, p[j]);
        }
        for (double& value : p) sum += value = std::exp(value - highest);
        e.lse[row * shape.heads + h] = highest + std::log(sum);
        for (int64_t j = 0; j <= i; ++j) {
          p[j] /= sum;
          delta += p[j] * dp[j];
        }
        for (int64_t j = 0; j <= i; ++j) {
          const double ds = p[j] * (dp[j] - delta) * double(shape.scale);
          const int64_t key = (begin + j) * stride;
          for (int64_t c = 0; c < d; ++c) {
            e.out[row * q_stride + q_at + c] += p[j] * batch.qkv[key + v_at + c];
            e.dqkv[row * stride + q_at + c] += ds * batch.qkv[key + k_at + c];
            e.dqkv[key + k_at + c] += ds * batch.qkv[row * stride + q_at + c];
            e.dqkv[key + v_at + c] += p[j] * batch.dout[row * q_stride + q_at + c];
          }
        }
      }
    }
    begin += length;
  }
  return e;
}

void expect_close(const Batch& batch, const Expected& expected) {
  const double tolerance = batch.dtype() == DType::f32 ? 3e-6 : 8e-3;
  EXPECT_LT(relative_distance(batch.out, expected.out, batch.out.size()), tolerance);
  EXPECT_LT(relative_distance(batch.dqkv, expected.dqkv, batch.dqkv.size()), tolerance);
  const double slack = batch.dtype() == DType::f32 ? 1e-5 : 1e-4;
  for (size_t i = 0; i < expected.lse.size(); ++i) ASSERT_NEAR(batch.lse[i], expected.lse[i], slack) << i;
}

void expect_equal(const Batch& a, const Batch& b) {
  EXPECT_TRUE(a.out == b.out);
  EXPECT_TRUE(a.lse == b.lse);
  EXPECT_TRUE(a.dqkv == b.dqkv);
}

AttentionShape shape_of(int64_t heads, int64_t kv_heads, int64_t head_dim) {
  return {heads, kv_heads, head_dim, float(1 / std::sqrt(double(head_dim)))};
}

class Attention : public testing::TestWithParam<Kernel> {
 protected:
  void SetUp() override {
    if (!can_run(GetParam())) GTEST_SKIP() << "this machine lacks the instructions";
    if (direct(GetParam()) == nullptr && bf16_isa() == Isa::none) GTEST_SKIP() << "switched off";
  }
};

INSTANTIATE_TEST_SUITE_P(Kernels, Attention,
                         testing::Values(Kernel::f32, Kernel::bf16, Kernel::f32_avx2, Kernel::bf16_avx2, Kernel::f32_avx512, Kernel::bf16_avx512,
                                         Kernel::bf16_avx512_widened),
                         [](const auto& info) { return name_of(info.param); });

TEST_P(Attention, AgreesWithTheReferenceOnRaggedRows) {
  Batch batch(GetParam(), shape_of(6, 2, 64), {1, 2, 31, 32, 33, 64, 65, 100, 128, 1, 130, 200}, 1);
  batch.run_whole();
  expect_close(batch, reference(batch));
}

TEST_P(Attention, AgreesForEveryHeadDimAndRatioOfHeads) {
  uint64_t key = 10;
  for (int64_t head_dim = 16; head_dim <= 128; head_dim += 16) {
    for (const auto& [heads, kv_heads] : {std::pair{1, 1}, {3, 3}, {4, 1}, {8, 2}}) {
      Batch batch(GetParam(), shape_of(heads, kv_heads, head_dim), {70, 5, 40}, key += 2);
      batch.run_whole();
      SCOPED_TRACE(testing::Message() << head_dim << " " << heads << "/" << kv_heads);
      expect_close(batch, reference(batch));
    }
  }
}

TEST_P(Attention, SurvivesLargeScores) {
  Batch batch(GetParam(), shape_of(2, 1, 32), {90}, 5);
  batch.shape.scale = 12;  // scores of hundreds: most probabilities vanish
  batch.run_whole();
  const Expected expected = reference(batch);
  EXPECT_LT(relative_distance(batch.out, expected.out, batch.out.size()), 1e-2);
  EXPECT_LT(relative_distance(batch.dqkv, expected.dqkv, batch.dqkv.size()), 2e-2);
}

TEST_P(Attention, NoTokensIsNoWork) {
  Batch batch(GetParam(), shape_of(2, 1, 32), {0, 3, 0}, 6);
  batch.run_whole();
  expect_close(batch, reference(batch));
  attention_forward(batch.dtype(), batch.shape, {}, nullptr, 64, nullptr, 64, nullptr);
}

TEST_P(Attention, ChunksCutAnywhereAgreeWithTheReference) {
  for (const int64_t step : {1, 16, 64, 257}) {
    const int64_t tokens = step == 1 ? 70 : 300;
    Batch batch(GetParam(), shape_of(3, 1, 32), {tokens}, 20 + uint64_t(step));
    std::vector<int64_t> cuts;
    for (int64_t end = step; end < tokens; end += step) cuts.push_back(end);
    cuts.push_back(tokens);
    batch.run_chain(cuts);
    SCOPED_TRACE(step);
    expect_close(batch, reference(batch));
  }
}

TEST_P(Attention, ChunksCutAtMultiplesOf64HaveTheBitsOfTheWholeRow) {
  Batch whole(GetParam(), shape_of(6, 2, 64), {459}, 30);
  whole.run_whole();
  for (const std::vector<int64_t>& cuts :
       {std::vector<int64_t>{459}, {64, 459}, {128, 192, 459}, {64, 128, 192, 256, 320, 384, 448, 459}}) {
    Batch chain(GetParam(), whole.shape, {459}, 30);
    chain.run_chain(cuts);
    expect_equal(chain, whole);
  }
}

TEST_P(Attention, BitsDoNotDependOnNeighbours) {
  Batch company(GetParam(), shape_of(4, 2, 48), {77, 200, 13}, 40);
  company.run_whole();
  Batch alone(GetParam(), company.shape, {200}, 0);
  for (int64_t i = 0; i < alone.qkv.size(); ++i) alone.qkv.set(i, company.qkv[77 * company.qkv_stride() + i]);
  for (int64_t i = 0; i < alone.dout.size(); ++i) alone.dout.set(i, company.dout[77 * company.q_stride() + i]);
  alone.run_whole();
  for (int64_t i = 0; i < alone.out.size(); ++i) ASSERT_EQ(alone.out[i], company.out[77 * company.q_stride() + i]);
  for (int64_t i = 0; i < alone.dqkv.size(); ++i) {
    ASSERT_EQ(alone.dqkv[i], company.dqkv[77 * company.qkv_stride() + i]);
  }
}

TEST_P(Attention, BitsDoNotDependOnTheNumberOfThreads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  Batch one(GetParam(), shape_of(3, 1, 64), {900, 40}, 50);
  one.run_whole();
  for (const int threads : {2, 3, 7}) {
    omp_set_num_threads(threads);
    Batch many(GetParam(), one.shape, {900, 40}, 50);
    many.run_whole();
    expect_equal(many, one);
  }
  omp_set_num_threads(before);
}

struct Taken {
  std::vector<size_t> calls;
  int64_t alive = 0;
};

MemorySource counted(Taken& taken) {
  return {[](void* context, size_t bytes) {
            auto& ledger = *static_cast<Taken*>(context);
            ledger.calls.push_back(bytes);
            ledger.alive += int64_t(bytes);
            return MemorySource::heap().allocate(nullptr, bytes);
          },
          [](void* context, void* memory, size_t bytes) noexcept {
            static_cast<Taken*>(context)->alive -= int64_t(bytes);
            MemorySource::heap().release(nullptr, memory, bytes);
          },
          &taken};
}

TEST(AttentionScratch, IsTakenOnceACallForEveryThreadAndGivenBack) {
  if (!cpu_features().avx2) GTEST_SKIP() << "no kernels of our own here";
  const int before = omp_get_max_threads();
  for (const int threads : {1, 3}) {
    omp_set_num_threads(threads);
    for (const Kernel kernel : {Kernel::f32, Kernel::bf16}) {
      Batch batch(kernel, {4, 2, 48, 0.1f}, {30, 200}, 60);
      std::vector<AttentionSegment> segments = {{0, 30, 0, batch.qkv.at(0), batch.qkv.at(0), batch.qkv_stride()},
                                                {30, 200, 0, batch.qkv.at(0), batch.qkv.at(0), batch.qkv_stride()}};
      std::vector<AttentionKvGradient> gradients;
      for (const int64_t begin : {0, 30}) {
        gradients.push_back({batch.dqkv.at(begin * batch.qkv_stride() + batch.q_stride()),
                             batch.dqkv.at(begin * batch.qkv_stride() + batch.q_stride() + batch.kv_columns()), batch.qkv_stride(), nullptr, nullptr});
      }
      Taken taken;
      attention_forward(batch.dtype(), batch.shape, segments, batch.qkv.data(), batch.qkv_stride(), batch.out.data(), batch.q_stride(),
                        batch.lse.data(), counted(taken));
      attention_backward(batch.dtype(), batch.shape, segments, gradients, batch.qkv.data(), batch.qkv_stride(), batch.out.data(),
                         batch.q_stride(), batch.dout.data(), batch.q_stride(), batch.lse.data(), batch.dqkv.data(), batch.qkv_stride(),
                         counted(taken));
      EXPECT_EQ(taken.calls, (std::vector<size_t>{size_t(threads * attention_forward_scratch_bytes(batch.dtype(), batch.shape, 200)),
                                                  size_t(threads * attention_backward_scratch_bytes(batch.dtype(), batch.shape, 200))}));
      EXPECT_EQ(taken.alive, 0);
    }
  }
  omp_set_num_threads(before);
}

TEST(AttentionScratch, GrowsWithTheRowAsTheHeaderSays) {
  if (!cpu_features().avx2) GTEST_SKIP() << "no kernels of our own here";
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const AttentionShape shape = {2, 1, 128, 0.1f};
    const int64_t per_token = (12 / attention_elements_per_word(dtype) + 8) * shape.head_dim;
    EXPECT_EQ(attention_backward_scratch_bytes(dtype, shape, 6464) - attention_backward_scratch_bytes(dtype, shape, 64), 6400 * per_token);
    EXPECT_EQ(attention_backward_scratch_bytes(dtype, shape, 65), attention_backward_scratch_bytes(dtype, shape, 128));
    EXPECT_LT(attention_forward_scratch_bytes(dtype, shape, 6464), attention_backward_scratch_bytes(dtype, shape, 6464));
  }
}

}  // namespace
}  // namespace cotune::kernels
