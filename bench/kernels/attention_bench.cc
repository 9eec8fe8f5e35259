/// Times of attention and of the row kernels at the shapes of one layer of SmolLM2-135M.
///   attention_bench [bf16|f32]
/// COTUNE_CPU_ISA=avx512_bf16 leaves the tiles out. Prints milliseconds per layer (the best of several runs) and, for
/// attention, GFLOP/s with the hidden half of the scores not counted. Compare only runs made back to back.
#include <omp.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "kernels/optimizer_steps.h"
#include "kernels/attention.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/isa.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/sparse_delta.h"
#include "kernels/swiglu.h"

using namespace cotune::kernels;

namespace {

double best_ms(const std::function<void()>& run) {
  double best = 1e30, spent = 0;
  for (int i = 0; i < 3 || (spent < 200 && i < 200); ++i) {
    const auto start = std::chrono::steady_clock::now();
    run();
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    best = std::min(best, ms);
    spent += ms;
  }
  return best;
}

struct Buffer {
  Buffer(DType d, int64_t count) : dtype(d), memory(size_t(count * bytes_of(d)) / 4 + 16) {
    std::mt19937 source(1);
    std::vector<float> values(4099);
    for (float& value : values) value = std::normal_distribution<float>()(source);
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(values[size_t(i % 4099)]);
      if (dtype == DType::f32) {
        memory[size_t(i)] = bits;
      } else {
        reinterpret_cast<uint16_t*>(memory.data())[i] = uint16_t(bits >> 16);
      }
    }
  }
  void* at(int64_t i) { return reinterpret_cast<char*>(memory.data()) + i * bytes_of(dtype); }
  float* floats() { return reinterpret_cast<float*>(memory.data()); }
  DType dtype;
  std::vector<uint32_t> memory;
};

void attention(DType dtype, const char* name, const std::vector<int64_t>& lengths, int64_t heads, int64_t kv_heads,
               int64_t head_dim) {
  const AttentionShape shape = {heads, kv_heads, head_dim, float(1 / std::sqrt(double(head_dim)))};
  const int64_t q_columns = heads * head_dim, kv_columns = kv_heads * head_dim, stride = q_columns + 2 * kv_columns;
  int64_t tokens = 0;
  double pairs = 0;
  for (const int64_t length : lengths) {
    tokens += length;
    pairs += double(length) * double(length + 1) / 2;
  }
  Buffer qkv(dtype, tokens * stride), dqkv(dtype, tokens * stride), out(dtype, tokens * q_columns),
      dout(dtype, tokens * q_columns), lse(DType::f32, tokens * heads);
  std::vector<AttentionSegment> segments;
  std::vector<AttentionKvGradient> gradients;
  int64_t begin = 0;
  for (const int64_t length : lengths) {
    const int64_t k = begin * stride + q_columns;
    segments.push_back({begin, length, 0, qkv.at(k), qkv.at(k + kv_columns), stride});
    gradients.push_back({dqkv.at(k), dqkv.at(k + kv_columns), stride, nullptr, nullptr});
    begin += length;
  }
  const double forward = best_ms([&] {
    attention_forward(dtype, shape, segments, qkv.at(0), stride, out.at(0), q_columns, lse.floats());
  });
  const double backward = best_ms([&] {
    attention_backward(dtype, shape, segments, gradients, qkv.at(0), stride, out.at(0), q_columns, dout.at(0), q_columns,
                       lse.floats(), dqkv.at(0), stride);
  });
  const double flops = pairs * double(heads * head_dim) * 4;
  std::printf("attention %-22s forward %7.3f ms %6.0f GF   backward %7.3f ms %6.0f GF\n", name, forward,
              flops / forward * 1e-6, backward, flops * 2.5 / backward * 1e-6);
}

void rows(DType dtype, int64_t tokens) {
  const int64_t hidden = 576, width = 1536, vocabulary = 49152;
  Buffer x(dtype, tokens * hidden), y(dtype, tokens * hidden), dy(dtype, tokens * hidden);
  Buffer weight(DType::f32, hidden), inverse_rms(DType::f32, tokens);
  std::printf("rms_norm forward %.3f ms", best_ms([&] {
                rms_norm_forward(dtype, x.at(0), tokens, hidden, weight.floats(), 1e-5f, dtype, y.at(0), inverse_rms.floats());
              }));
  std::printf(", backward %.3f ms\n", best_ms([&] {
                rms_norm_backward(dtype, dy.at(0), x.at(0), tokens, hidden, weight.floats(), inverse_rms.floats(),
                                  y.at(0), y.at(0));
              }));
  Buffer gate_up(dtype, tokens * 2 * width), dgate_up(dtype, tokens * 2 * width), mid(dtype, tokens * width);
  std::printf("swiglu forward %.3f ms", best_ms([&] {
                swiglu_forward(dtype, gate_up.at(0), 2 * width, tokens, width, mid.at(0), width);
              }));
  std::printf(", backward with y %.3f ms\n", best_ms([&] {
                swiglu_backward(dtype, mid.at(0), width, gate_up.at(0), 2 * width, tokens, width, dgate_up.at(0),
                                2 * width, mid.at(0), width);
              }));
  Buffer qkv(dtype, tokens * 960), angles(DType::f32, 4096 * 32);
  std::vector<int32_t> positions(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) positions[size_t(t)] = int32_t(t % 256);
  std::printf("rope %.3f ms\n", best_ms([&] {
                rotate_in_place(dtype, qkv.at(0), tokens, 960, 12, 64, positions.data(), angles.floats(),
                                angles.floats(), RopeDirection::forward);
              }));
  std::vector<uint64_t> examples(static_cast<size_t>(tokens), 7);
  const DropoutRows dropped = {hidden, examples.data(), positions.data()};
  const std::vector<DropoutGroup> dropout = {{{1, 0.05f}, {0, tokens}, 0}};
  std::printf("dropout %.3f ms\n",
              best_ms([&] { dropout_forward(dtype, dropout, dropped, x.at(0), hidden, y.at(0), hidden); }));
  const int64_t chunk = 256;
  Buffer logits(dtype, chunk * (vocabulary + 32));
  std::vector<int32_t> labels(chunk, 5);
  std::vector<float> scale(chunk, 1.f), loss(chunk);
  std::printf("cross-entropy, %ld rows %.3f ms\n", long(chunk), best_ms([&] {
                softmax_cross_entropy(dtype, logits.at(0), vocabulary + 32, chunk, vocabulary, labels.data(),
                                      scale.data(), loss.data(), dtype, logits.at(0), vocabulary + 32);
              }));
  const int64_t parameters = 4'900'000;
  Buffer p(DType::f32, parameters), m(DType::f32, parameters), v(DType::f32, parameters), g(DType::f32, parameters);
  std::fill_n(v.floats(), parameters, 1.f);
  std::printf("adamw, 4.9 M parameters %.3f ms\n", best_ms([&] {
                adamw_step({.lr = 1e-5}, 2, 1, parameters, g.floats(), p.floats(), m.floats(), v.floats());
              }));
  std::vector<int64_t> offsets = {0};
  std::vector<int32_t> indices;
  for (int64_t j = 0; j < width; ++j) {
    for (int64_t i = j % 200; i < hidden; i += 200) indices.push_back(int32_t(i));
    offsets.push_back(int64_t(indices.size()));
  }
  std::vector<float> values(indices.size(), 0.1f), value_gradients(indices.size());
  const SparseDelta delta = {hidden, width, offsets.data(), indices.data()};
  const std::vector<SparseRows> sparse_rows = {{delta, values.data(), {0, tokens}}};
  const std::vector<SparseValueGradient> sparse_sums = {{delta, {0, tokens}, 0, value_gradients.data()}};
  std::printf("sparse delta 576x1536, 0.5 %%: forward %.3f ms", best_ms([&] {
                sparse_delta_forward(dtype, sparse_rows, {x.at(0), hidden, mid.at(0), width});
              }));
  std::printf(", dx %.3f ms", best_ms([&] {
                sparse_delta_input_gradient(dtype, sparse_rows, {mid.at(0), width, x.at(0), hidden});
              }));
  std::printf(", values %.3f ms\n", best_ms([&] {
                sparse_delta_value_gradient(dtype, sparse_sums, x.at(0), hidden, mid.at(0), width);
              }));
}

}  // namespace

int main(int argc, char** argv) {
  const DType dtype = argc > 1 && std::string(argv[1]) == "f32" ? DType::f32 : DType::bf16;
  std::printf("%s, %d threads\n", dtype == DType::f32 ? "f32" : to_string(bf16_isa()).c_str(), omp_get_max_threads());
  std::vector<int64_t> mixed;  // 2,340 tokens in 32 rows of 8 to 256
  for (int64_t i = 0; i < 32; ++i) mixed.push_back(8 + i * i * 248 / 961 * 3 / 4 + (i % 3) * 8);
  attention(dtype, "mixed 8..256", mixed, 9, 3, 64);
  attention(dtype, "64 x 32", std::vector<int64_t>(64, 32), 9, 3, 64);
  attention(dtype, "16 x 128", std::vector<int64_t>(16, 128), 9, 3, 64);
  attention(dtype, "8 x 256", std::vector<int64_t>(8, 256), 9, 3, 64);
  attention(dtype, "1 x 2048", {2048}, 9, 3, 64);
  attention(dtype, "4 x 512, head_dim 128", std::vector<int64_t>(4, 512), 8, 2, 128);
  rows(dtype, 2048);
}
