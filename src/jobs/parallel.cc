#include "jobs/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <utility>

#include "base/error.h"

namespace cotune {
namespace {

/// The text up to a separator, which is taken away with it.
std::string_view take_until(std::string_view& text, char separator, bool& is_last) {
  const size_t end = text.find(separator);
  const std::string_view part = text.substr(0, end);
  is_last = end == std::string_view::npos;
  if (!is_last) text.remove_prefix(end + 1);
  return part;
}

/// One kind of replica, as often as `dp` says.
std::optional<std::vector<ReplicaDegrees>> parse_replicas(std::string_view text) {
  ReplicaDegrees degrees;
  int64_t count = 1;
  const std::map<std::string_view, std::pair<int64_t*, int64_t>> fields{{"pp=", {&degrees.pipeline, most_ranks}},
                                                                        {"tp=", {&degrees.tensor, most_ranks}},
                                                                        {"vp=", {&degrees.stages_per_rank, most_ranks}},
                                                                        {"dp=", {&count, most_ranks}},
                                                                        {"len", {&degrees.longest_row, std::numeric_limits<int32_t>::max()}}};
  std::vector<std::string_view> seen;
  for (bool is_last = false; !is_last;) {
    std::string_view part = take_until(text, ',', is_last);
    bool* const flag = part == "shard" ? &degrees.shards_weights : part == "seq" ? &degrees.is_sequence_parallel : nullptr;
    if (flag != nullptr && !*flag) {
      *flag = true;
      continue;
    }
    const auto found = fields.find(part.substr(0, 3));
    if (found == fields.end() || std::ranges::count(seen, found->first) > 0) return std::nullopt;
    seen.push_back(found->first);
    part.remove_prefix(3);
    if (found->first == "len") {
      if (!part.starts_with('=')) return std::nullopt;
      part.remove_prefix(1);
    }
    const auto& [value, most] = found->second;
    const char* end = part.data() + part.size();
    const auto [parsed, error] = std::from_chars(part.data(), end, *value);
    if (error != std::errc{} || parsed != end || *value < 1 || *value > most) return std::nullopt;
  }
  if (degrees.stages_per_rank > 1 && degrees.pipeline == 1) return std::nullopt;
  if (degrees.shards_weights && count == 1) return std::nullopt;
  if (degrees.is_sequence_parallel && degrees.tensor == 1) return std::nullopt;
  return std::vector<ReplicaDegrees>(static_cast<size_t>(count), degrees);
}

}  // namespace

int64_t Parallel::ranks() const {
  int64_t count = 0;
  for (const ReplicaDegrees& replica : replicas) count += replica.ranks();
  return count;
}

int64_t Parallel::stages() const {
  int64_t most = 1;
  for (const ReplicaDegrees& replica : replicas) most = std::max(most, replica.stages());
  return most;
}

bool Parallel::shards_weights() const {
  return std::ranges::any_of(replicas, [](const ReplicaDegrees& each) { return each.shards_weights; });
}

bool Parallel::is_sequence_parallel() const {
  return std::ranges::any_of(replicas, [](const ReplicaDegrees& each) { return each.is_sequence_parallel; });
}

std::vector<int64_t> Parallel::tensor() const {
  std::vector<int64_t> degrees;
  for (const ReplicaDegrees& replica : replicas) degrees.push_back(replica.tensor);
  std::ranges::sort(degrees);
  degrees.erase(std::unique(degrees.begin(), degrees.end()), degrees.end());
  return degrees;
}

std::optional<Parallel> parse_parallel(std::string_view text) {
  Parallel parallel{.replicas = {}};
  for (bool is_last = false; !is_last;) {
    const auto replicas = parse_replicas(take_until(text, '+', is_last));
    if (!replicas) return std::nullopt;
    parallel.replicas.insert(parallel.replicas.end(), replicas->begin(), replicas->end());
    if (parallel.ranks() > most_ranks) return std::nullopt;
  }
  const bool takes_any = std::ranges::any_of(parallel.replicas, [](const ReplicaDegrees& each) { return each.longest_row == 0; });
  return takes_any ? std::optional(parallel) : std::nullopt;
}

bool names_degrees(const RunSpec& run) { return run.parallel != parallel_as_stages && run.parallel != parallel_as_planned; }

Parallel parallel_of(const RunSpec& run) {
  if (!names_degrees(run)) return {.replicas = {{.pipeline = run.ranks}}};
  const std::optional<Parallel> parallel = parse_parallel(run.parallel);
  COTUNE_CHECK(parallel.has_value(), "run.parallel is `{}`", run.parallel);
  return *parallel;
}

std::string to_string(const Parallel& parallel) {
  std::string text;
  for (size_t i = 0; i < parallel.replicas.size();) {
    const ReplicaDegrees& degrees = parallel.replicas[i];
    size_t count = 0;
    while (i < parallel.replicas.size() && parallel.replicas[i] == degrees) ++i, ++count;
    text += fmt::format("{}dp={},{}", text.empty() ? "" : "+", count, to_string(degrees));
    if (degrees.stages_per_rank > 1) text += fmt::format(",vp={}", degrees.stages_per_rank);
    if (degrees.is_sequence_parallel) text += ",seq";
    if (degrees.shards_weights) text += ",shard";
    if (degrees.longest_row > 0) text += fmt::format(",len={}", degrees.longest_row);
  }
  return text;
}

std::string to_string(const ReplicaDegrees& degrees) { return fmt::format("pp={},tp={}", degrees.pipeline, degrees.tensor); }

}  // namespace cotune
