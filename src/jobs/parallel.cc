#include "jobs/parallel.h"

#include <charconv>

#include "base/error.h"

namespace cotune {

std::optional<Parallel> parse_parallel(std::string_view text) {
  Parallel parallel;
  bool has_pipeline = false, has_tensor = false;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view part = text.substr(0, comma);
    const bool is_pipeline = part.starts_with("pp="), is_tensor = part.starts_with("tp=");
    if ((!is_pipeline || has_pipeline) && (!is_tensor || has_tensor)) return std::nullopt;
    (is_pipeline ? has_pipeline : has_tensor) = true;
    int64_t& degree = is_pipeline ? parallel.pipeline : parallel.tensor;
    const char* end = part.data() + part.size();
    const auto [parsed, error] = std::from_chars(part.data() + 3, end, degree);
    if (error != std::errc{} || parsed != end || degree < 1 || degree > most_ranks) return std::nullopt;
    if (comma == std::string_view::npos) break;
    text.remove_prefix(comma + 1);
  }
  if (parallel.ranks() > most_ranks) return std::nullopt;
  return parallel;
}

Parallel parallel_of(const RunSpec& run) {
  if (run.parallel == "auto") return {.pipeline = run.ranks, .tensor = 1};
  const std::optional<Parallel> parallel = parse_parallel(run.parallel);
  COTUNE_CHECK(parallel.has_value(), "run.parallel is `{}`", run.parallel);
  return *parallel;
}

}  // namespace cotune
