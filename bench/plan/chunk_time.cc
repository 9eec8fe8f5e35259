/// The time of a chunk in LobRA's published tables: its form (LB-28), and our cost model beside LobRA and NeMo (LB-32).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "base/nonnegative_least_squares.h"
#include "plan/cost/published_rates.h"
#include "plan/cost/replica_costs.h"
#include "rows.h"

namespace cotune {
namespace {

const std::vector<int64_t> table_lengths = {2048, 4096, 8192, 16384};

std::string range_of(const std::vector<double>& ratios) {
  double logs = 0;
  for (const double each : ratios) logs += std::log(each) / static_cast<double>(ratios.size());
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  return fmt::format("{:.3f}, {:.3f}–{:.3f}", std::exp(logs), *least, *most);
}

/// LobRA's Table 11: seconds of a step of 64 rows on 16 devices, by LobRA and by NeMo.
struct HomogeneousRow {
  int64_t tensor_parallel, stages, tokens;
  double lobra, nemo;
};
constexpr HomogeneousRow table11[] = {
    {1, 1, 2048, 1.778, 1.533},  {1, 2, 2048, 1.978, 1.785},  {1, 4, 2048, 2.131, 1.939},   {1, 4, 4096, 4.141, 3.872},
    {1, 8, 2048, 2.308, 2.134},  {1, 8, 4096, 4.492, 4.247},  {2, 1, 2048, 2.414, 2.127},   {2, 1, 4096, 4.297, 3.922},
    {2, 2, 2048, 2.611, 2.432},  {2, 2, 4096, 4.612, 4.294},  {2, 4, 2048, 2.718, 2.616},   {2, 4, 4096, 4.915, 4.548},
    {2, 8, 2048, 3.040, 2.967},  {2, 8, 4096, 5.391, 5.221},  {2, 8, 8192, 10.611, 9.956},  {4, 1, 2048, 3.395, 4.040},
    {4, 1, 4096, 5.608, 5.198},  {4, 1, 8192, 10.530, 9.956}, {4, 2, 2048, 3.626, 4.447},   {4, 2, 4096, 5.911, 5.494},
    {4, 2, 8192, 11.143, 10.634}, {4, 4, 2048, 3.793, 4.637}, {4, 4, 4096, 6.255, 5.939},   {4, 4, 8192, 11.770, 11.139},
    {8, 1, 2048, 5.691, 8.494},  {8, 1, 4096, 8.649, 8.589},  {8, 1, 8192, 14.769, 13.770}, {8, 1, 16384, 29.271, 28.054},
    {8, 2, 2048, 5.887, 8.693},  {8, 2, 4096, 9.032, 9.028},  {8, 2, 8192, 15.464, 14.669}, {8, 2, 16384, 30.468, 29.299},
};

double chunks_of(const HomogeneousRow& row) { return 64.0 / (16.0 / static_cast<double>(row.tensor_parallel * row.stages)); }

/// LB-28: t(b, s) fitted to single chunks of Table 11 and full chunks of Table 3, with and without a constant.
void chunk_time() {
  std::vector<std::string> with, without;
  for (const int64_t tensor_parallel : {2, 4, 8}) {
    for (const bool has_constant : {false, true}) {
      std::vector<std::vector<double>> rows;
      std::vector<double> ones;
      const auto add = [&](double count, double tokens, double seconds) {
        rows.push_back({(has_constant ? 1 : count) / seconds, count * tokens / seconds, count * tokens * tokens / seconds});
        ones.push_back(1);
      };
      for (const HomogeneousRow& row : table11) {
        if (row.tensor_parallel == tensor_parallel && row.stages == 1) add(1, static_cast<double>(row.tokens), row.lobra / chunks_of(row));
      }
      for (const Configuration& each : published_7b_configurations()) {
        if (each.tensor_parallel != tensor_parallel || each.pipeline_stages != 1) continue;
        for (const int64_t tokens : table_lengths) {
          if (tokens > each.chunk_tokens) break;
          const int64_t count = each.chunk_tokens / tokens;
          add(static_cast<double>(count), static_cast<double>(tokens), each.chunk_seconds(count, tokens));
        }
      }
      const std::vector<double> fitted = nonnegative_least_squares(rows, ones);
      double worst = 0;
      for (const auto& row : rows) {
        double predicted = 0;
        for (size_t k = 0; k < fitted.size(); ++k) predicted += fitted[k] * row[k];
        worst = std::max(worst, std::abs(predicted - 1));
      }
      (has_constant ? with : without).push_back(fmt::format("TP {} {:.1f} %", tensor_parallel, 100 * worst));
    }
  }
  print_row("LB-28: t(b, s) fitted to the one-stage rows of Tables 3 and 11, worst error", "proportional to b: [13, 23 and 38 %]; with a constant: [4.0, 2.2 and 2.2 %]",
            "at most 10 %", fmt::format("proportional to b, b·(γ + βs + αs²): {}; with a constant a chunk, c + b·(βs + αs²): {}", fmt::join(without, ", "), fmt::join(with, ", ")));
}

/// LB-32: what our cost model says of the configurations at which LobRA and NeMo were compared.
void homogeneous_parity() {
  const ModelConfig model = model_preset("llama-2-7b");
  JobSpec spec;
  spec.adapter.r = 16;
  const std::vector<AdapterShape> adapters = adapter_shapes(spec, 0, model);
  std::vector<double> over_lobra, over_nemo, published;
  for (const HomogeneousRow& row : table11) {
    StageMachine machine{device_preset("A100-40"), link_preset("nvlink-600"), "bfloat16"};
    double slowest = 0;
    for (const StageShape& stage : even_stages(model, row.stages, row.tensor_parallel)) {
      slowest = std::max(slowest, stage_seconds(model, stage, adapters, even_microbatch(1, row.tokens, {1}), machine).total());
    }
    const double seconds = (chunks_of(row) + static_cast<double>(row.stages) - 1) * slowest;
    over_lobra.push_back(seconds / row.lobra);
    over_nemo.push_back(seconds / row.nemo);
    published.push_back(row.lobra / row.nemo);
  }
  print_row("LB-32: seconds of a step of Table 11's 32 rows, by our roofline over the measured ones of LobRA and of NeMo: geometric mean, range",
            "LobRA over NeMo: [1.011, 0.670–1.160]", "shown",
            fmt::format("LobRA over NeMo by the table: {}; ours over LobRA: {}; ours over NeMo: {}", range_of(published), range_of(over_lobra), range_of(over_nemo)));
}

}  // namespace

void chunk_time_rows() {
  chunk_time();
  homogeneous_parity();
}

}  // namespace cotune
