/// Rates of the CPU matrix kernels at the shapes of one training step of SmolLM2-135M.
///   product_bench [bf16|avx512_bf16|avx512_widened|avx2_bf16|f32|f32_in_2|f32_in_1|avx512|avx2] [--cold] [rows ...]
/// f32: the fastest for this machine; f32_in_2, f32_in_1: with weights in so many bf16 parts (kernels/float_parts.h).
/// --cold: every run takes another of so many equal weights that none is in a cache, as in a step of training.
/// Prints GFLOP/s: the median of several runs. Compare only runs made back to back.
#include <omp.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "kernels/float_parts.h"
#include "kernels/low_rank.h"
#include "kernels/outer_product.h"
#include "kernels/product.h"

using namespace cotune::kernels;

namespace {

std::mt19937 source(1);

struct Buffer {
  Buffer(int64_t rows, int64_t columns, DType dtype)
      : stride(columns), memory(PackedMatrix(rows * columns / 32 + 1, 32, dtype)) {
    std::vector<float> values(4099);
    for (float& value : values) value = std::normal_distribution<float>()(source);
    for (int64_t i = 0; i < rows * columns; ++i) {
      const float value = values[static_cast<size_t>(i % 4099)];
      if (dtype == DType::f32) {
        static_cast<float*>(data())[i] = value;
      } else {
        static_cast<uint16_t*>(data())[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
      }
    }
  }
  void* data() { return const_cast<void*>(memory.panel(0)); }
  int64_t stride;
  PackedMatrix memory;
};

double median_seconds(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  run();
  const auto start = Clock::now();
  while (seconds.size() < 200 && (seconds.size() < 5 || Clock::now() - start < std::chrono::milliseconds(300))) {
    const auto before = Clock::now();
    run();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - before).count());
  }
  std::nth_element(seconds.begin(), seconds.begin() + static_cast<int64_t>(seconds.size() / 2), seconds.end());
  return seconds[seconds.size() / 2];
}

void report(const char* what, int64_t rows, int64_t k, int64_t n, double flop, double seconds) {
  std::printf("%-22s rows %5ld  %5ld x %-5ld  %8.3f ms  %7.1f GFLOP/s\n", what, static_cast<long>(rows),
              static_cast<long>(k), static_cast<long>(n), seconds * 1e3, flop / seconds * 1e-9);
  std::fflush(stdout);
}

constexpr int64_t cold_bytes = 512 << 20;

void measure(Isa isa, DType dtype, int parts, int64_t rows, bool cold) {
  constexpr int64_t rank = 16;
  for (const auto& [k, n] : {std::pair<int64_t, int64_t>{576, 960},
                             {960, 576},
                             {576, 576},
                             {576, 3072},
                             {3072, 576},
                             {1536, 576},
                             {576, 1536},
                             {576, 49152},
                             {49152, 576}}) {
    if ((n > 10000 || k > 10000) && rows > 700) continue;
    Buffer weights(k, n, dtype);
    // In a step the products of other layers come between two uses of a weight: it is read from memory.
    std::vector<PackedMatrix> layers;
    for (int64_t bytes = 0; layers.empty() || (cold && bytes < cold_bytes); bytes += layers.back().bytes()) {
      layers.emplace_back(k, n, dtype, MemorySource::heap(), parts);
      layers.back().repack({weights.data(), n, dtype, MatrixView::Order::rows});
    }
    size_t layer = 0;
    const auto next = [&]() -> const PackedMatrix& { return layers[layer++ % layers.size()]; };
    Buffer x(rows, k, dtype), y(rows, n + 32, dtype);
    const double flop = 2.0 * static_cast<double>(rows) * static_cast<double>(k) * static_cast<double>(n);
    report("product", rows, k, n, flop,
           median_seconds([&] { product(isa, x.data(), k, rows, next(), y.data(), n + 32); }));
    if (n > 10000 || k > 10000) continue;

    for (const int64_t jobs : {4, 16}) {
      std::vector<PackedMatrix> up, down;
      std::vector<LowRankTerm> terms;
      std::vector<ShrinkGroup> groups;
      std::vector<OuterGroup> outer;
      Buffer factor(std::max(k, n), rank, dtype), s(rows, 32, dtype);
      Buffer gradient(rank * jobs, n, DType::f32);
      for (int64_t job = 0; job < jobs; ++job) {
        up.emplace_back(rank, n, dtype, MemorySource::heap(), parts == 0 ? 0 : largest_part_count);
        up.back().repack({factor.data(), rank, dtype, MatrixView::Order::transposed});
        down.push_back(PackedMatrix::from_rows(factor.data(), k, rank, rank, dtype, dtype));
      }
      for (int64_t job = 0; job < jobs; ++job) {
        const RowRange mine = {rows * job / jobs, rows * (job + 1) / jobs};
        char* from = static_cast<char*>(s.data()) + mine.begin * 32 * bytes_of(dtype);
        terms.push_back({mine, 0, n, from, 32, &up[static_cast<size_t>(job)]});
        groups.push_back({mine, &down[static_cast<size_t>(job)], from, 32, 1});
        outer.push_back({mine, from, 32, rank, static_cast<float*>(gradient.data()) + job * rank * n, n, 1});
      }
      ProductOptions options;
      options.terms = terms;
      const double rank_flop = 2.0 * static_cast<double>(rows) * rank;
      const std::string with = std::to_string(jobs) + " jobs";
      report((with + " product").c_str(), rows, k, n, flop + rank_flop * static_cast<double>(n),
             median_seconds([&] { product(isa, x.data(), k, rows, next(), y.data(), n + 32, options); }));
      report((with + " shrink").c_str(), rows, k, rank, rank_flop * static_cast<double>(k),
             median_seconds([&] { shrink(isa, x.data(), k, groups); }));
      report((with + " outer").c_str(), rows, rank, n, rank_flop * static_cast<double>(n),
             median_seconds([&] { outer_products(isa, dtype, y.data(), n + 32, n, outer); }));
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  const std::string name = count > 1 ? arguments[1] : "bf16";
  const CpuFeatures& features = cpu_features();
  const std::map<std::string, std::pair<Isa, bool>> sets = {{"avx2", {Isa::avx2, features.avx2}},
                                                            {"avx2_bf16", {Isa::avx2_bf16, features.avx2}},
                                                            {"avx512", {Isa::avx512, features.avx512}},
                                                            {"avx512_widened", {Isa::avx512_widened, features.avx512}},
                                                            {"avx512_bf16", {Isa::avx512_bf16, features.avx512_bf16}}};
  const bool f32 = !name.ends_with("bf16") && name != "avx512_widened";
  const auto set = sets.find(name);
  const Isa isa = set == sets.end() ? (f32 ? f32_isa() : bf16_isa()) : set->second.second ? set->second.first : Isa::none;
  const DType dtype = f32 ? DType::f32 : DType::bf16;
  const int parts = isa != Isa::amx_f32 ? 0 : name == "f32_in_1" ? 1 : name == "f32_in_2" ? 2 : largest_part_count;
  if (isa == Isa::none) {
    std::puts("this machine does not have that instruction set");
    return 1;
  }
  std::printf("%s, %d threads\n", to_string(isa).c_str(), omp_get_max_threads());
  std::vector<int64_t> rows;
  bool cold = false;
  for (int i = 2; i < count; ++i) {
    if (std::string(arguments[i]) == "--cold") {
      cold = true;
    } else {
      rows.push_back(std::atol(arguments[i]));
    }
  }
  if (rows.empty()) rows = {64, 640, 1500};
  for (const int64_t each : rows) measure(isa, dtype, parts, each, cold);
}
