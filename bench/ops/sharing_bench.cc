/// What one product gains from sharing, at the shapes of SmolLM2-135M in bf16 where kernels run in it.
///   sharing_bench [f32]
///
/// 1. Spatial sharing (MuxTune §3.3, figure 9): seconds t(n) of a frozen product of n rows, the knee of
///    t(n) = max(t_min, c·n), and what 8 jobs of n rows gain in one product over 8 products: 8·t(n) / t(8n).
/// 2. Graph pruning (mLoRA §3.3.1, figure 16a): the input gradient of k jobs with their low-rank parts added inside the
///    product, over the form that autograd makes of it: the product, a tensor of the parts, and their sum.
/// Medians of several runs; the forms take turns. Compare only runs made back to back.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string_view>

#include "ops/backend.h"
#include "ops/frozen_product.h"
#include "ops/low_rank.h"

namespace {

using namespace cotune;

constexpr int64_t hidden = 576, intermediate = 1536, lora_rank = 16, rows_of_a_job = 128;

/// Medians of several calls, which take turns.
std::vector<double> median_seconds(const std::vector<std::function<void()>>& calls) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::vector<double>> seconds(calls.size());
  for (const auto& call : calls) call();
  const auto start = Clock::now();
  while (seconds[0].size() < 2000 && (seconds[0].size() < 15 || Clock::now() - start < std::chrono::milliseconds(400))) {
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto before = Clock::now();
      calls[i]();
      seconds[i].push_back(std::chrono::duration<double>(Clock::now() - before).count());
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& each : seconds) {
    std::nth_element(each.begin(), each.begin() + static_cast<int64_t>(each.size() / 2), each.end());
    medians.push_back(each[each.size() / 2]);
  }
  return medians;
}

void knee(at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto product = make_frozen_product({at::randn({hidden, intermediate}, options) * 0.02}, {});
  const auto call = [&](int64_t rows) {
    const at::Tensor x = at::randn({rows, intermediate}, options);
    return [&product, x] { product->forward(x, {}); };
  };
  std::printf("%6s %12s %10s %12s\n", "rows", "us", "us/row", "gain of 8");
  double least = 0, slope = 0;
  for (const int64_t rows : {1, 4, 16, 64, 256, 1024}) {
    const std::vector<double> seconds = median_seconds({call(rows), call(8 * rows)});
    if (rows == 1) least = seconds[0];
    slope = seconds[1] / static_cast<double>(8 * rows);
    std::printf("%6lld %12.1f %10.2f %11.2fx\n", static_cast<long long>(rows), seconds[0] * 1e6,
                seconds[0] * 1e6 / static_cast<double>(rows), 8 * seconds[0] / seconds[1]);
  }
  std::printf("t(n) = max(%.1f us, %.3f us * n): the knee is at %.0f rows\n", least * 1e6, slope * 1e6, least / slope);
}

void pruning(at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(dtype);
  const auto product = make_frozen_product({at::randn({hidden, intermediate}, options) * 0.02}, {});
  std::printf("%6s %12s %12s %10s\n", "jobs", "unpruned us", "pruned us", "latency");
  for (const int64_t jobs : {1, 2, 4, 6, 8}) {
    const at::Tensor d = at::randn({jobs * rows_of_a_job, hidden}, options);
    std::vector<std::unique_ptr<LowRankFactor>> a, b;
    std::vector<at::Tensor> plain;
    std::vector<ShrinkGroup> groups;
    std::vector<LowRankTerm> terms;
    for (int64_t job = 0; job < jobs; ++job) {
      const at::Tensor master = at::randn({lora_rank, intermediate}) * 0.02;
      plain.push_back(master.to(dtype));
      a.push_back(make_low_rank_factor(master, dtype, FactorForm::kept));
      b.push_back(make_low_rank_factor(at::randn({lora_rank, hidden}) * 0.02, dtype, FactorForm::kept));
      groups.push_back({{job * rows_of_a_job, (job + 1) * rows_of_a_job}, b.back().get(), 1, {}});
    }
    shrink(d, groups);
    for (size_t job = 0; job < groups.size(); ++job) terms.push_back({groups[job].rows, 0, groups[job].s, a[job].get()});
    const auto unpruned = [&] {
      const at::Tensor dx = product->backward(d, {}), parts = at::zeros({d.size(0), intermediate}, options);
      for (size_t job = 0; job < terms.size(); ++job) {
        const RowRange& rows = terms[job].rows;
        parts.narrow(0, rows.begin, rows.count()).copy_(at::mm(terms[job].s.narrow(1, 0, lora_rank), plain[job]));
      }
      return dx + parts;
    };
    const std::vector<double> seconds = median_seconds({unpruned, [&] { product->backward(d, {.terms = &terms}); }});
    std::printf("%6lld %12.1f %12.1f %+9.1f%%\n", static_cast<long long>(jobs), seconds[0] * 1e6, seconds[1] * 1e6,
                100 * (seconds[1] / seconds[0] - 1));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool f32 = argc > 1 && std::string_view(argv[1]) == "f32";
  const at::ScalarType dtype = f32 || kernel_isa(at::kBFloat16, at::kCPU) == kernels::Isa::none ? at::kFloat : at::kBFloat16;
  std::printf("frozen product, %lld to %lld, %s\n", static_cast<long long>(intermediate), static_cast<long long>(hidden),
              dtype == at::kFloat ? "f32" : "bf16");
  knee(dtype);
  std::printf("\ninput gradient with LoRA of rank %lld, %lld rows a job\n", static_cast<long long>(lora_rank),
              static_cast<long long>(rows_of_a_job));
  pruning(dtype);
}
