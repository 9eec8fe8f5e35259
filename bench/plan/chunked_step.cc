#include "chunked_step.h"

#include <algorithm>

#include "base/error.h"
#include "plan/cost/pipeline_seconds.h"

namespace cotune {
namespace {

/// Rows of one replica, by bucket.
struct Replica {
  size_t configuration = 0;
  std::vector<int64_t> rows;
  double seconds = 0;
};

class ChunkTimes {
 public:
  ChunkTimes(std::span<const Configuration> configurations, const LengthBuckets& buckets) : configurations_(configurations), buckets_(buckets) {
    for (const Configuration& each : configurations) {
      std::vector<std::vector<double>>& own = seconds_.emplace_back();
      for (const int64_t tokens : buckets.tokens) own.emplace_back(static_cast<size_t>(each.chunk_tokens / tokens) + 1, 0);
    }
  }

  bool holds(size_t configuration, size_t bucket) const { return seconds_[configuration][bucket].size() > 1; }

  /// Eq. 12; Eq. 10 with one stage.
  double of(size_t configuration, std::span<const int64_t> rows) {
    std::vector<double> chunks;
    for (size_t j = 0; j < rows.size(); ++j) {
      if (rows[j] == 0) continue;
      const auto full = static_cast<int64_t>(seconds_[configuration][j].size()) - 1;
      const int64_t whole = rows[j] / full, rest = rows[j] % full;
      for (const auto& [times, count] : {std::pair{whole, full}, std::pair{rest > 0 ? int64_t{1} : int64_t{0}, rest}}) {
        if (times > 0) chunks.insert(chunks.end(), static_cast<size_t>(times), chunk(configuration, j, count));
      }
    }
    return uneven_chunks_seconds(chunks, configurations_[configuration].pipeline_stages);
  }

 private:
  double chunk(size_t configuration, size_t bucket, int64_t count) {
    double& seconds = seconds_[configuration][bucket][static_cast<size_t>(count)];
    if (seconds == 0) seconds = configurations_[configuration].chunk_seconds(count, buckets_.tokens[bucket]);
    return seconds;
  }

  std::span<const Configuration> configurations_;
  const LengthBuckets& buckets_;
  std::vector<std::vector<std::vector<double>>> seconds_;  ///< [configuration][bucket][rows of a chunk]; 0: not asked yet
};

std::vector<Replica> empty_replicas(std::span<const int64_t> replicas, size_t buckets) {
  std::vector<Replica> all;
  for (size_t i = 0; i < replicas.size(); ++i) {
    for (int64_t k = 0; k < replicas[i]; ++k) all.push_back({i, std::vector<int64_t>(buckets, 0), 0});
  }
  return all;
}

double seconds_with(ChunkTimes& times, Replica& replica, size_t bucket, int64_t more) {
  replica.rows[bucket] += more;
  const double seconds = times.of(replica.configuration, replica.rows);
  replica.rows[bucket] -= more;
  return seconds;
}

/// Moves the rows away from the slowest replica that end it soonest; false where none do.
bool relieve_slowest(ChunkTimes& times, std::vector<Replica>& replicas) {
  Replica& slowest = *std::max_element(replicas.begin(), replicas.end(), [](const Replica& a, const Replica& b) { return a.seconds < b.seconds; });
  double least = slowest.seconds * (1 - 1e-9);
  Replica* to = nullptr;
  size_t bucket = 0;
  int64_t moved = 0;
  for (size_t j = 0; j < slowest.rows.size(); ++j) {
    for (const int64_t count : {int64_t{1}, int64_t{2}, int64_t{4}, slowest.rows[j]}) {
      if (count == 0 || count > slowest.rows[j]) continue;
      const double left = seconds_with(times, slowest, j, -count);
      for (Replica& each : replicas) {
        if (&each == &slowest || !times.holds(each.configuration, j)) continue;
        const double longer = std::max(left, seconds_with(times, each, j, count));
        if (longer < least) least = longer, to = &each, bucket = j, moved = count;
      }
    }
  }
  if (to == nullptr) return false;
  slowest.rows[bucket] -= moved;
  to->rows[bucket] += moved;
  for (Replica* each : {&slowest, to}) each->seconds = times.of(each->configuration, each->rows);
  return true;
}

std::vector<double> seconds_of(const std::vector<Replica>& replicas) {
  std::vector<double> seconds;
  for (const Replica& each : replicas) seconds.push_back(each.seconds);
  return seconds;
}

}  // namespace

std::vector<double> replica_seconds(std::span<const Configuration> configurations, std::span<const int64_t> replicas,
                                    const LengthBuckets& buckets, const Dispatch& dispatch) {
  ChunkTimes times(configurations, buckets);
  std::vector<Replica> all = empty_replicas(replicas, buckets.tokens.size());
  size_t first = 0;
  for (size_t i = 0; i < replicas.size(); ++i) {
    const auto count = static_cast<size_t>(replicas[i]);
    size_t turn = 0;
    for (size_t j = 0; count > 0 && j < buckets.tokens.size() && times.holds(i, j); ++j) {
      for (int64_t row = 0; row < dispatch.sequences[i][j]; ++row) ++all[first + turn++ % count].rows[j];
    }
    first += count;
  }
  for (Replica& each : all) each.seconds = times.of(each.configuration, each.rows);
  return seconds_of(all);
}

std::vector<double> chunked_dispatch_seconds(std::span<const Configuration> configurations, std::span<const int64_t> replicas,
                                             const LengthBuckets& buckets) {
  ChunkTimes times(configurations, buckets);
  std::vector<Replica> all = empty_replicas(replicas, buckets.tokens.size());
  for (size_t j = buckets.tokens.size(); j-- > 0;) {
    for (int64_t row = 0; row < buckets.sequences[j]; ++row) {
      Replica* best = nullptr;
      double soonest = 0;
      for (Replica& each : all) {
        if (!times.holds(each.configuration, j)) continue;
        const double with = seconds_with(times, each, j, 1);
        if (best == nullptr || with < soonest) best = &each, soonest = with;
      }
      COTUNE_CHECK(best != nullptr, "no replica holds a row of {} tokens", buckets.tokens[j]);
      ++best->rows[j];
      best->seconds = soonest;
    }
  }
  for (int move = 0; move < 1000 && relieve_slowest(times, all); ++move) {
  }
  return seconds_of(all);
}

}  // namespace cotune
