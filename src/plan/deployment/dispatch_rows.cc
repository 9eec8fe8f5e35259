#include "plan/deployment/dispatch_rows.h"

#include <algorithm>
#include <limits>

namespace cotune {
namespace {

class RowAssignment {
 public:
  RowAssignment(std::span<const BucketCosts> costs, std::span<const int64_t> replicas, size_t buckets) : costs_(costs) {
    for (size_t i = 0; i < replicas.size(); ++i) {
      for (int64_t k = 0; k < replicas[i] * costs[i].copies; ++k) rows_.replicas.push_back({i, std::vector<int64_t>(buckets, 0), 0});
    }
  }

  /// False where nothing holds the bucket.
  bool place(size_t bucket) {
    size_t best = rows_.replicas.size();
    double end = std::numeric_limits<double>::infinity();
    for (size_t r = 0; r < rows_.replicas.size(); ++r) {
      const double with = seconds_with(r, bucket);
      if (with < end) best = r, end = with;
    }
    if (best == rows_.replicas.size()) return false;
    change(best, bucket, 1);
    return true;
  }

  void improve() {
    while (improve_once()) {
    }
  }

  RowDispatch finish() {
    for (const ReplicaRows& each : rows_.replicas) rows_.makespan = std::max(rows_.makespan, each.seconds);
    return std::move(rows_);
  }

 private:
  const BucketCosts& costs_of(size_t r) const { return costs_[rows_.replicas[r].configuration]; }

  double seconds_with(size_t r, size_t bucket) const {
    const BucketCosts& costs = costs_of(r);
    if (bucket >= costs.reach()) return std::numeric_limits<double>::infinity();
    const double before = rows_.replicas[r].seconds;
    return (before > 0 ? before : costs.fill) + costs.seconds[bucket];
  }

  void change(size_t r, size_t bucket, int64_t count) {
    ReplicaRows& replica = rows_.replicas[r];
    replica.sequences[bucket] += count;
    double sum = 0;
    for (size_t j = 0; j < costs_of(r).reach(); ++j) {
      sum += static_cast<double>(replica.sequences[j]) * costs_of(r).seconds[j];
    }
    replica.seconds = sum > 0 ? sum + costs_of(r).fill : 0;
  }

  /// Moves a sequence of the slowest replica to where the later of the two ends soonest, or exchanges it for a shorter one.
  bool improve_once() {
    size_t slowest = 0;
    for (size_t r = 1; r < rows_.replicas.size(); ++r) {
      if (rows_.replicas[r].seconds > rows_.replicas[slowest].seconds) slowest = r;
    }
    const ReplicaRows& from = rows_.replicas[slowest];
    const BucketCosts& costs = costs_of(slowest);
    const size_t none = from.sequences.size();
    double best = from.seconds * (1 - rounded_seconds);
    size_t best_bucket = none, best_replica = 0, best_back = none;
    for (size_t j = 0; j < std::min(costs.reach(), none); ++j) {
      if (from.sequences[j] == 0) continue;
      for (size_t r = 0; r < rows_.replicas.size(); ++r) {
        if (r == slowest || j >= costs_of(r).reach()) continue;
        const double left = from.seconds - costs.seconds[j], with = seconds_with(r, j);
        if (std::max(left, with) < best) best = std::max(left, with), best_bucket = j, best_replica = r, best_back = none;
        for (size_t k = 0; k < j; ++k) {
          if (rows_.replicas[r].sequences[k] == 0) continue;
          const double later = std::max(left + costs.seconds[k], with - costs_of(r).seconds[k]);
          if (later < best) best = later, best_bucket = j, best_replica = r, best_back = k;
        }
      }
    }
    if (best_bucket == none) return false;
    change(slowest, best_bucket, -1);
    change(best_replica, best_bucket, 1);
    if (best_back != none) {
      change(best_replica, best_back, -1);
      change(slowest, best_back, 1);
    }
    return true;
  }

  std::span<const BucketCosts> costs_;
  RowDispatch rows_;
};

}  // namespace

RowDispatch dispatch_rows(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                          std::span<const int64_t> sequences) {
  RowAssignment assignment(costs, replicas, sequences.size());
  for (size_t j = sequences.size(); j-- > 0;) {
    for (int64_t k = 0; k < sequences[j]; ++k) {
      if (!assignment.place(j)) return {};
    }
  }
  assignment.improve();
  return assignment.finish();
}

Dispatch totals_of(const RowDispatch& rows, size_t configurations, size_t buckets) {
  Dispatch dispatch;
  dispatch.sequences.assign(configurations, std::vector<int64_t>(buckets, 0));
  dispatch.seconds.assign(configurations, 0);
  for (const ReplicaRows& each : rows.replicas) {
    for (size_t j = 0; j < buckets; ++j) dispatch.sequences[each.configuration][j] += each.sequences[j];
    dispatch.seconds[each.configuration] = std::max(dispatch.seconds[each.configuration], each.seconds);
  }
  dispatch.makespan = rows.makespan;
  return dispatch;
}

}  // namespace cotune
