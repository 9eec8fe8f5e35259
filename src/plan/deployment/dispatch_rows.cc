#include "plan/deployment/dispatch_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace cotune {
namespace {

// Of the search: at most so many nodes, and so many comparisons of replicas in them.
constexpr int64_t most_nodes = 2'000, most_comparisons = 100'000;

/// When a replica ends that gets a sequence of the bucket besides; infinite where it holds none.
double end_with(const ReplicaRows& replica, const BucketCosts& costs, size_t bucket) {
  if (bucket >= costs.reach()) return std::numeric_limits<double>::infinity();
  return (replica.seconds > 0 ? replica.seconds : costs.fill) + costs.seconds[bucket];
}

class RowAssignment {
 public:
  RowAssignment(std::span<const BucketCosts> costs, std::span<const int64_t> replicas, size_t buckets) : costs_(costs) {
    for (size_t i = 0; i < replicas.size(); ++i) {
      for (int64_t k = 0; k < replicas[i] * costs[i].copies; ++k) rows_.replicas.push_back({i, std::vector<int64_t>(buckets, 0), 0});
    }
  }

  RowAssignment(std::span<const BucketCosts> costs, RowDispatch rows) : costs_(costs), rows_(std::move(rows)) {}

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

  RowDispatch result() const {
    RowDispatch rows = rows_;
    rows.makespan = 0;
    for (const ReplicaRows& each : rows.replicas) rows.makespan = std::max(rows.makespan, each.seconds);
    return rows;
  }

 private:
  const BucketCosts& costs_of(size_t r) const { return costs_[rows_.replicas[r].configuration]; }

  double seconds_with(size_t r, size_t bucket) const { return end_with(rows_.replicas[r], costs_of(r), bucket); }

  void change(size_t r, size_t bucket, int64_t count) {
    ReplicaRows& replica = rows_.replicas[r];
    replica.sequences[bucket] += count;
    double sum = 0;
    for (size_t j = 0; j < costs_of(r).reach(); ++j) {
      sum += static_cast<double>(replica.sequences[j]) * costs_of(r).seconds[j];
    }
    replica.seconds = sum > 0 ? sum + costs_of(r).fill : 0;
  }

  /// A sequence of the slowest replica's that would go to `to`, and the shorter ones that it would get for it.
  struct Exchange {
    size_t to = 0;
    size_t bucket = 0;
    size_t back = 0;
    int64_t count = 0;  ///< of `back`
  };

  /// Moves a sequence of the slowest replica to where the later of the two ends soonest, or exchanges it for a shorter one, two, or as many as make
  /// up for its time.
  bool improve_once() {
    size_t slowest = 0;
    for (size_t r = 1; r < rows_.replicas.size(); ++r) {
      if (rows_.replicas[r].seconds > rows_.replicas[slowest].seconds) slowest = r;
    }
    const ReplicaRows& from = rows_.replicas[slowest];
    const BucketCosts& costs = costs_of(slowest);
    double least = from.seconds * (1 - rounded_seconds);
    std::optional<Exchange> best;
    const auto offer = [&](double seconds, const Exchange& exchange) {
      if (seconds < least) least = seconds, best = exchange;
    };
    for (size_t j = 0; j < std::min(costs.reach(), from.sequences.size()); ++j) {
      if (from.sequences[j] == 0) continue;
      const double left = from.seconds - costs.seconds[j];
      for (size_t r = 0; r < rows_.replicas.size(); ++r) {
        if (r == slowest || j >= costs_of(r).reach()) continue;
        const double with = seconds_with(r, j);
        offer(std::max(left, with), {.to = r, .bucket = j});
        for (size_t k = 0; k < j; ++k) {
          const int64_t there = rows_.replicas[r].sequences[k];
          const auto as_long = static_cast<int64_t>(std::ceil(costs_of(r).seconds[j] / costs_of(r).seconds[k]));
          for (const int64_t count : {int64_t{1}, int64_t{2}, as_long - 1, as_long}) {
            if (count < 1 || count > there) continue;
            const auto times = static_cast<double>(count);
            offer(std::max(left + times * costs.seconds[k], with - times * costs_of(r).seconds[k]), {r, j, k, count});
          }
        }
      }
    }
    if (!best) return false;
    change(slowest, best->bucket, -1);
    change(best->to, best->bucket, 1);
    if (best->count > 0) {
      change(best->to, best->back, -best->count);
      change(slowest, best->back, best->count);
    }
    return true;
  }

  std::span<const BucketCosts> costs_;
  RowDispatch rows_;
};

/// Depth first over the sequences, longest first, each to the replicas in the order in which they are done with it: what ends later than the best
/// so far is left, and so is what leaves too little time for the rest. What it finds is improved likewise.
class RowSearch {
 public:
  RowSearch(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, RowDispatch best)
      : costs_(costs), left_(sequences.begin(), sequences.end()), best_(std::move(best)), now_(best_) {
    for (ReplicaRows& each : now_.replicas) {
      std::fill(each.sequences.begin(), each.sequences.end(), 0);
      each.seconds = 0;
    }
    for (size_t j = 0; j < left_.size(); ++j) {
      double least = std::numeric_limits<double>::infinity();
      for (const ReplicaRows& each : now_.replicas) {
        const BucketCosts& costs_here = costs_[each.configuration];
        if (j < costs_here.reach()) least = std::min(least, costs_here.seconds[j]);
      }
      least_.push_back(least);
      if (left_[j] > 0) rest_ += static_cast<double>(left_[j]) * least;
    }
  }

  RowDispatch run(int64_t nodes) {
    nodes_ = nodes;
    visit(left_.size());
    return std::move(best_);
  }

 private:
  struct Choice {
    double end = 0;
    size_t replica = 0;
    auto operator<=>(const Choice&) const = default;
  };

  double target() const { return best_.makespan * (1 - rounded_seconds); }

  /// `above`: no sequences are left of this bucket and longer ones.
  void visit(size_t above) {
    while (above > 0 && left_[above - 1] == 0) --above;
    if (above == 0) return take();
    if (--nodes_ < 0) return;
    double room = 0;
    for (const ReplicaRows& each : now_.replicas) {
      room += std::max(0.0, target() - (each.seconds > 0 ? each.seconds : costs_[each.configuration].fill));
    }
    if (rest_ > room) return;
    const size_t j = above - 1;
    std::vector<Choice> choices;
    for (size_t r = 0; r < now_.replicas.size(); ++r) {
      const ReplicaRows& each = now_.replicas[r];
      const double end = end_with(each, costs_[each.configuration], j);
      if (end >= target()) continue;
      const bool is_like_one_before = std::any_of(choices.begin(), choices.end(), [&](const Choice& other) {
        return now_.replicas[other.replica].configuration == each.configuration && now_.replicas[other.replica].seconds == each.seconds;
      });
      if (!is_like_one_before) choices.push_back({end, r});
    }
    std::sort(choices.begin(), choices.end());
    --left_[j];
    rest_ -= least_[j];
    for (const Choice& choice : choices) {
      if (choice.end >= target() || nodes_ < 0) break;  // the best may have become better meanwhile
      ReplicaRows& replica = now_.replicas[choice.replica];
      const double before = std::exchange(replica.seconds, choice.end);
      ++replica.sequences[j];
      visit(above);
      --replica.sequences[j];
      replica.seconds = before;
    }
    rest_ += least_[j];
    ++left_[j];
  }

  void take() {
    RowAssignment found(costs_, now_);
    found.improve();
    best_ = found.result();
  }

  std::span<const BucketCosts> costs_;
  std::vector<int64_t> left_;
  RowDispatch best_, now_;
  std::vector<double> least_;  ///< seconds of a sequence of each bucket where it takes least
  double rest_ = 0;            ///< of all that are left
  int64_t nodes_ = 0;
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
  RowDispatch improved = assignment.result();
  const auto count = static_cast<int64_t>(improved.replicas.size());
  const int64_t nodes = std::min(most_nodes, most_comparisons / (count * count));
  return RowSearch(costs, sequences, std::move(improved)).run(nodes);
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
