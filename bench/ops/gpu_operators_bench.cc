// The GPU's kernels, each with what its memory traffic takes at the bandwidth of a copy (its roofline), and the batched
// adapter operator against a loop over jobs and against one adapter of equal work.
//
//   build/gpu_operators_bench [--json]
//
// Sizes: hidden 4096, intermediate 14336, 32 heads of 128 with 8 of keys and values, 8192 tokens, bf16. Adapters: 8 jobs of 256
// rows, ranks 8 to 64. Times are medians over 30 calls, by events of the device.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "device/compute_device.h"
#include "engine/device_times.h"
#include "ops/attention.h"
#include "ops/cross_entropy_head.h"
#include "ops/frozen_product.h"
#include "ops/low_rank.h"
#include "ops/rms_norm.h"
#include "ops/select_entries.h"
#include "ops/sparse_delta.h"
#include "ops/swiglu.h"

namespace {

using namespace cotune;

constexpr int64_t tokens = 8192, hidden = 4096, intermediate = 14336;
constexpr int repetitions = 30;

at::Device device = at::kCPU;

at::Tensor values(std::vector<int64_t> sizes, double scale = 1) {
  return at::randn(sizes, at::TensorOptions().device(device).dtype(at::kFloat)).mul_(scale).to(at::kBFloat16);
}

/// Median seconds of a call. Between calls a buffer larger than the cache is written, so that inputs come from memory.
double seconds_of(const std::function<void()>& call) {
  static const at::Tensor flushed = at::empty({int64_t{256} << 20}, at::TensorOptions().device(device).dtype(at::kByte));
  for (int i = 0; i < 3; ++i) call();
  DeviceTimes times(device);
  times.begin();
  for (int i = 0; i < repetitions; ++i) {
    const_cast<at::Tensor&>(flushed).fill_(i);
    times.mark("between");
    call();
    times.mark("call");
  }
  std::vector<double> seconds;
  times.collect([&](const std::string& name, double value) {
    if (name == "call") seconds.push_back(value);
  });
  std::nth_element(seconds.begin(), seconds.begin() + repetitions / 2, seconds.end());
  return seconds[repetitions / 2];
}

struct Rates {
  double bytes_per_s = 0, flops_per_s = 0;
};

Rates measured_rates() {
  const at::Tensor from = at::empty({int64_t{1} << 30}, at::TensorOptions().device(device).dtype(at::kByte)).fill_(1);
  const at::Tensor to = at::empty_like(from);
  const double copy = seconds_of([&] { to.copy_(from); });
  const at::Tensor a = values({8192, 8192}), b = values({8192, 8192});
  const double product = seconds_of([&] { at::mm(a, b); });
  return {2.0 * static_cast<double>(from.nbytes()) / copy, 2.0 * 8192 * 8192 * 8192 / product};
}

bool json = false;

/// bytes, flops: the least that must be moved and computed.
void row(const Rates& rates, const char* name, double bytes, double flops, const std::function<void()>& call) {
  const double seconds = seconds_of(call);
  const double bound = std::max(bytes / rates.bytes_per_s, flops / rates.flops_per_s);
  if (json) {
    fmt::print("{{\"kernel\": \"{}\", \"us\": {:.2f}, \"bound_us\": {:.2f}}}\n", name, seconds * 1e6, bound * 1e6);
  } else {
    fmt::print("{:44} {:9.1f} us   bound {:9.1f} us   {:4.0f} %\n", name, seconds * 1e6, bound * 1e6, 100 * bound / seconds);
  }
}

struct Jobs {
  std::vector<std::unique_ptr<LowRankFactor>> a, b;
  std::vector<at::Tensor> a_gradients, b_gradients;
  std::vector<RowRange> rows;
  std::vector<int64_t> ranks;
};

Jobs jobs_of(const std::vector<int64_t>& ranks, int64_t rows_each, int64_t in, int64_t out) {
  const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
  Jobs jobs;
  for (const int64_t rank : ranks) {
    const int64_t begin = jobs.rows.empty() ? 0 : jobs.rows.back().end;
    jobs.rows.push_back({begin, begin + rows_each});
    jobs.ranks.push_back(rank);
    jobs.a.push_back(make_low_rank_factor(at::randn({rank, in}, options), at::kBFloat16));
    jobs.b.push_back(make_low_rank_factor(at::randn({rank, out}, options), at::kBFloat16));
    jobs.a_gradients.push_back(at::zeros({rank, in}, options));
    jobs.b_gradients.push_back(at::zeros({rank, out}, options));
  }
  return jobs;
}

/// Forward and backward of the adapters of one projection: shrink, expand, the gradient's way back, both gradients.
void adapter_step(const Jobs& jobs, size_t first, size_t count, const at::Tensor& x, const at::Tensor& dy, at::Tensor& y,
                  at::Tensor& dx) {
  std::vector<ShrinkGroup> down, up;
  for (size_t i = first; i < first + count; ++i) {
    down.push_back({jobs.rows[i], jobs.a[i].get(), 2.0, {}});
    up.push_back({jobs.rows[i], jobs.b[i].get(), 2.0, {}});
  }
  shrink(x, down);
  shrink(dy, up);
  std::vector<ExpandGroup> forward, backward;
  std::vector<GradientGroup> a_gradients, b_gradients;
  for (size_t i = first; i < first + count; ++i) {
    forward.push_back({.rows = jobs.rows[i], .s = down[i - first].s, .factor = jobs.b[i].get()});
    backward.push_back({.rows = jobs.rows[i], .s = up[i - first].s, .factor = jobs.a[i].get()});
    a_gradients.push_back({jobs.rows[i], up[i - first].s, jobs.a_gradients[i]});
    b_gradients.push_back({jobs.rows[i], down[i - first].s, jobs.b_gradients[i]});
  }
  add_expansions(y, forward);
  add_expansions(dx, backward);
  accumulate_gradients(x, a_gradients);
  accumulate_gradients(dy, b_gradients);
}

void adapter_rows(int64_t in, int64_t out) {
  const std::vector<int64_t> ranks{8, 16, 24, 32, 40, 48, 56, 64};
  const Jobs jobs = jobs_of(ranks, 256, in, out), one = jobs_of({36}, 8 * 256, in, out);
  const at::Tensor x = values({8 * 256, in}), dy = values({8 * 256, out});
  at::Tensor y = values({8 * 256, out}), dx = values({8 * 256, in});
  const double batched = seconds_of([&] { adapter_step(jobs, 0, ranks.size(), x, dy, y, dx); });
  const double loop = seconds_of([&] {
    for (size_t i = 0; i < ranks.size(); ++i) adapter_step(jobs, i, 1, x, dy, y, dx);
  });
  const double alone = seconds_of([&] { adapter_step(one, 0, 1, x, dy, y, dx); });
  if (json) {
    fmt::print("{{\"adapters\": \"{}x{}\", \"batched_us\": {:.2f}, \"loop_us\": {:.2f}, \"one_us\": {:.2f}}}\n", in, out,
               batched * 1e6, loop * 1e6, alone * 1e6);
  } else {
    fmt::print("adapters {}x{}, 8 jobs of 256 rows, ranks 8 to 64: batched {:.1f} us, loop {:.1f} us ({:.2f}x), one adapter of "
               "equal work {:.1f} us ({:.2f}x)\n",
               in, out, batched * 1e6, loop * 1e6, loop / batched, alone * 1e6, batched / alone);
  }
}

void kernel_rows(const Rates& rates) {
  const double t = tokens, h = hidden, f = intermediate;
  const at::Tensor x = values({tokens, hidden}), dy = values({tokens, hidden});
  const at::Tensor weight = at::ones({hidden}, at::TensorOptions().device(device).dtype(at::kFloat));
  const at::Tensor stream = x.to(at::kFloat);
  at::Tensor inverse, kept;
  row(rates, "rms_norm", (4 + 2 * 2) * t * h, 0, [&] { rms_norm(stream, weight, 1e-5, x.scalar_type(), inverse, &kept); });
  row(rates, "rms_norm_backward", 4 * t * h * 2, 0, [&] { rms_norm_backward(dy, x, weight, inverse, dy); });
  {
    const at::Tensor gate_up = values({tokens, 2 * intermediate}), d = values({tokens, intermediate});
    row(rates, "swiglu", 3 * t * f * 2, 0, [&] { swiglu(gate_up); });
    row(rates, "swiglu_backward", 6 * t * f * 2, 0, [&] { swiglu_backward(d, gate_up); });
  }
  {
    const AttentionShape shape{32, 8, 128};
    const at::Tensor qkv = values({tokens, shape.qkv_columns()}), d = values({tokens, hidden});
    std::vector<AttentionSegment> segments;
    std::vector<int32_t> begins{0};
    for (int64_t begin = 0; begin < tokens; begin += 1024) {
      segments.push_back({begin, 1024, 0, nullptr});
      begins.push_back(static_cast<int32_t>(begin + 1024));
    }
    const at::Tensor places = at::tensor(begins, at::kInt).to(device);
    const AttentionResult result = attention(qkv, segments, shape, places);
    const double forward = 2.0 * t * 1024 * h;  // two products of the lower triangle
    row(rates, "attention, 8 rows of 1024", 2 * t * (6144 + 4096), forward, [&] { attention(qkv, segments, shape, places); });
    row(rates, "attention_backward", 2 * t * (2 * 6144 + 2 * 4096), 2.5 * forward,
        [&] { attention_backward(d, qkv, result, segments, shape, places); });
    const RotaryTable table = rotary_table(std::vector<double>(64, 0.5), 2048, at::kBFloat16, device);
    const at::Tensor positions = at::arange(tokens, at::TensorOptions().dtype(at::kInt).device(device)).remainder(1024);
    at::Tensor rotated = qkv.clone();
    row(rates, "rotate", 2 * t * 5120 * 2, 0, [&] { rotate_in_place(rotated, positions, table, 40, 128, 1); });
  }
  const Jobs jobs = jobs_of({16, 16, 16, 16}, tokens / 4, hidden, 2 * intermediate);
  {
    std::vector<ShrinkGroup> groups;
    for (size_t i = 0; i < 4; ++i) groups.push_back({jobs.rows[i], jobs.a[i].get(), 2.0, {}});
    row(rates, "shrink 4096, 4 jobs, rank 16", t * h * 2, 2 * t * h * 16, [&] { shrink(x, groups); });
    at::Tensor y = values({tokens, 2 * intermediate});
    std::vector<ExpandGroup> expansions;
    std::vector<GradientGroup> gradients;
    std::vector<LowRankTerm> terms;
    for (size_t i = 0; i < 4; ++i) {
      expansions.push_back({.rows = jobs.rows[i], .s = groups[i].s, .factor = jobs.b[i].get()});
      gradients.push_back({jobs.rows[i], groups[i].s, jobs.b_gradients[i]});
      terms.push_back({jobs.rows[i], 0, groups[i].s, jobs.b[i].get()});
    }
    row(rates, "expand 28672, 4 jobs, rank 16", 2 * t * 2 * f * 2, 2 * t * 2 * f * 16, [&] { add_expansions(y, expansions); });
    row(rates, "outer_products 28672, 4 jobs, rank 16", t * 2 * f * 2, 2 * t * 2 * f * 16, [&] { accumulate_gradients(y, gradients); });
    const auto product = make_frozen_product({values({2 * intermediate, hidden}, 0.01)}, {});
    row(rates, "gate_up product without adapters", t * (h + 2 * f) * 2, 2 * t * h * 2 * f, [&] { product->forward(x, {}); });
    row(rates, "gate_up product with 4 adapters", t * (h + 2 * f) * 2, 2 * t * h * 2 * f, [&] { product->forward(x, {.terms = &terms}); });
  }
  const auto head = make_frozen_product({values({128256, hidden}, 0.01)}, {});
  const at::Tensor rows = values({4096, hidden}), labels = at::randint(128256, {4096}, at::TensorOptions().dtype(at::kInt).device(device));
  const at::Tensor scale = at::ones({4096}, at::TensorOptions().device(device).dtype(at::kFloat));
  row(rates, "head with gradient, 4096 rows of 128256", 0, 4.0 * 4096 * h * 128256,
      [&] { cross_entropy_head(rows, labels, scale, *head, true, int64_t{1} << 30); });
}

/// Four jobs of 2048 rows with 0.5 % of the entries of a weight of 4096 by 14336, and their gradients of biases.
void sparse_rows(const Rates& rates) {
  const double t = tokens, in = hidden, out = intermediate, kept = 0.005;
  const at::Tensor x = values({tokens, hidden}), dy = values({tokens, intermediate});
  at::Tensor y = dy.clone(), dx = x.clone();
  std::vector<SparseDelta> deltas;
  std::vector<SparseDeltaGroup> groups;
  std::vector<SparseDeltaGradient> gradients;
  std::vector<RowSum> sums;
  for (int64_t job = 0; job < 4; ++job) {
    const at::Tensor importance = at::rand({hidden, intermediate}, at::TensorOptions().device(device).dtype(at::kFloat));
    deltas.push_back(select_entries(importance, static_cast<int64_t>(kept * in * out)));
  }
  for (int64_t job = 0; job < 4; ++job) {
    const SparseDelta& delta = deltas[static_cast<size_t>(job)];
    const RowRange rows{job * tokens / 4, (job + 1) * tokens / 4};
    const auto options = at::TensorOptions().device(device).dtype(at::kFloat);
    groups.push_back({&delta, at::randn({delta.entry_count()}, options), rows});
    gradients.push_back({&delta, rows, 0, at::zeros({delta.entry_count()}, options)});
    sums.push_back({dy.narrow(0, rows.begin, rows.count()), at::zeros({intermediate}, options)});
  }
  const double flops = 2 * t * kept * in * out;
  row(rates, "sparse deltas 4096x14336, 4 jobs, 0.5 %", t * (in + 2 * out) * 2, flops, [&] { add_sparse_deltas(groups, x, y); });
  row(rates, "sparse deltas, input gradients", t * (2 * in + out) * 2, flops, [&] { add_sparse_delta_input_gradients(groups, dy, dx); });
  row(rates, "sparse deltas, gradients of values", t * (in + out) * 2, flops,
      [&] { add_sparse_delta_value_gradients(gradients, x, dy); });
  row(rates, "bias gradients 14336, 4 jobs", t * out * 2, 0, [&] { accumulate_row_sums(sums); });
}

}  // namespace

int main(int argc, char** argv) {
  json = argc > 1 && std::strcmp(argv[1], "--json") == 0;
  const ComputeDevice chosen = choose_device("cuda", "gpu_operators_bench");
  device = chosen.device;
  const Rates rates = measured_rates();
  fmt::print(fmt::runtime(json ? "{{\"device\": \"{}\", \"copy_bytes_per_s\": {:.4g}, \"bf16_flops_per_s\": {:.4g}}}\n"
                               : "{}: copies {:.4g} bytes/s, bf16 products {:.4g} FLOP/s\n"),
             chosen.name, rates.bytes_per_s, rates.flops_per_s);
  kernel_rows(rates);
  sparse_rows(rates);
  adapter_rows(4096, 4096);
  adapter_rows(4096, 14336);
}
