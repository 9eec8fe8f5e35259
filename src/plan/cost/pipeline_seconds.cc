#include "plan/cost/pipeline_seconds.h"

#include <algorithm>
#include <numeric>

namespace cotune {

double pipeline_seconds(std::span<const double> stage_seconds, int64_t microbatches) {
  if (stage_seconds.empty() || microbatches == 0) return 0;
  const double warm_up = std::accumulate(stage_seconds.begin(), stage_seconds.end() - 1, 0.0);
  const double slowest = *std::max_element(stage_seconds.begin(), stage_seconds.end());
  return 2 * warm_up + 2 * static_cast<double>(microbatches) * slowest;
}

double even_chunks_seconds(double chunk_seconds, int64_t chunks, int64_t stages) {
  return chunks == 0 ? 0 : static_cast<double>(chunks + stages - 1) * chunk_seconds;
}

double uneven_chunks_seconds(std::span<const double> chunk_seconds, int64_t stages) {
  if (chunk_seconds.empty()) return 0;
  const double sum = std::accumulate(chunk_seconds.begin(), chunk_seconds.end(), 0.0);
  return sum + static_cast<double>(stages - 1) * *std::max_element(chunk_seconds.begin(), chunk_seconds.end());
}

}  // namespace cotune
