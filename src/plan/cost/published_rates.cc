#include "plan/cost/published_rates.h"

#include <algorithm>

namespace cotune {
namespace {

struct Row {
  int64_t tensor_parallel, pipeline_stages;
  double thousands[4];  ///< at 2K, 4K, 8K, 16K; 0: out of memory
};

constexpr Row rows[] = {
    {1, 1, {5.11, 0, 0, 0}},       {2, 1, {4.30, 4.12, 0, 0}},       {1, 2, {4.88, 0, 0, 0}},
    {4, 1, {3.63, 3.50, 3.25, 0}}, {2, 2, {4.15, 3.98, 0, 0}},       {1, 4, {5.03, 4.78, 0, 0}},
    {8, 1, {2.79, 2.71, 2.56, 2.33}}, {4, 2, {3.48, 3.34, 3.12, 0}}, {2, 4, {4.27, 4.10, 3.79, 0}},
    {1, 8, {4.45, 4.25, 0, 0}},
};

double rate_at(const Row& row, int64_t tokens) {
  for (size_t k = 0; k + 1 < 4; ++k) {
    const int64_t low = int64_t{2048} << k, high = 2 * low;
    if (tokens <= low) return row.thousands[k];
    if (tokens > high) continue;
    const double share = static_cast<double>(tokens - low) / static_cast<double>(high - low);
    return (1 - share) * row.thousands[k] + share * row.thousands[k + 1];
  }
  return row.thousands[3];
}

}  // namespace

std::vector<Configuration> published_7b_configurations() {
  std::vector<Configuration> configurations;
  for (const Row& row : rows) {
    Configuration& each = configurations.emplace_back();
    each.tensor_parallel = row.tensor_parallel;
    each.pipeline_stages = row.pipeline_stages;
    for (size_t k = 0; k < 4; ++k) {
      if (row.thousands[k] > 0) each.chunk_tokens = int64_t{2048} << k;
    }
    const double devices = static_cast<double>(each.devices());
    each.chunk_seconds = [&row, devices](int64_t sequences, int64_t tokens) {
      return static_cast<double>(sequences * tokens) / (devices * 1000 * rate_at(row, tokens));
    };
  }
  return configurations;
}

}  // namespace cotune
