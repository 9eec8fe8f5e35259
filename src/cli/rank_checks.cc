#include "cli/rank_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "jobs/parallel.h"
#include "model/config/tensor_shard.h"

namespace cotune {

namespace fs = std::filesystem;

void check_ranks(const RunSpec& run, const std::map<std::string, OptionPlace>& places, const ModelConfig& config,
                 int32_t launched, Diagnostics& mistakes) {
  const auto found = places.find(run.parallel == "auto" ? "run.ranks" : "run.parallel");
  if (found == places.end()) return;
  const OptionPlace& place = found->second;
  const auto add = [&](const std::string& message) { mistakes.add(place.file, place.line, place.field, message); };
  const Parallel parallel = parallel_of(run);
  const std::string given = run.parallel == "auto" ? std::to_string(run.ranks) : run.parallel;
  if (launched > 0 && run.ranks != launched) {
    add(fmt::format("is {}, but {} processes were launched: each is one rank, and this is better left out", given, launched));
  }
  if (parallel.pipeline() > config.layer_count) {
    add(fmt::format("is {}, but the model has {} layers: at most one {} for each", given, config.layer_count,
                    run.parallel == "auto" ? "rank" : "stage"));
  }
  if (!std::ranges::all_of(parallel.tensor(), [&](int64_t degree) { return can_be_sharded(config, degree); })) {
    add(fmt::format("is {}, but the model has {} heads, {} kv heads and {} inner features; accepted are tp {}: they divide heads "
                    "and inner features, and divide the kv heads or are a multiple of them",
                    given, config.head_count, config.kv_head_count, config.intermediate_size,
                    fmt::join(shard_counts(config), ", ")));
  }
}

void check_rank_trace(const fs::path& file, const RunSpec& run, Diagnostics& mistakes) {
  if (run.ranks == 1) mistakes.add("--rank-trace", 0, "", "belongs to several ranks; run.ranks is 1");
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  if (!fs::is_directory(folder)) mistakes.add("--rank-trace", 0, "", fmt::format("{} is no folder", folder.string()));
}

}  // namespace cotune
