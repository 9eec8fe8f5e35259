#include "plan/deployment/dispatch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "plan/deployment/dispatch_bound.h"

namespace cotune {
namespace {

/// Sequences per replica q [bucket][deployed configuration] that cover every bucket, with the seconds they take.
class Assignment {
 public:
  Assignment(const std::vector<DeployedCosts>& deployed, std::span<const int64_t> sequences, std::vector<Cover> covers)
      : deployed_(deployed), sequences_(sequences), covers_(std::move(covers)) {
    for (size_t i = 0; i < deployed_.size(); ++i) seconds_.push_back(seconds_of(i));
  }

  double makespan() const { return *std::max_element(seconds_.begin(), seconds_.end()); }
  const std::vector<Cover>& covers() const { return covers_; }

  /// Moves and exchanges sequences away from the slowest configuration while that helps.
  void improve() {
    while (improve_once()) {
    }
  }

 private:
  double seconds_of(size_t i) const {
    double load = 0;
    for (size_t j = 0; j < deployed_[i].costs->reach(); ++j) {
      load += static_cast<double>(covers_[j][i]) * deployed_[i].costs->seconds[j];
    }
    return load > 0 ? load + deployed_[i].costs->fill : 0;
  }

  int64_t surplus(size_t j) const {
    int64_t covered = 0;
    for (size_t i = 0; i < deployed_.size(); ++i) covered += deployed_[i].replicas * covers_[j][i];
    return covered - sequences_[j];
  }

  bool reaches(size_t i, size_t j) const { return j < deployed_[i].costs->reach(); }

  /// Takes one sequence per replica of bucket j from `from` and has `to` cover what is then missing.
  void shift(size_t j, size_t from, size_t to, int64_t times) {
    covers_[j][from] -= times;
    const int64_t missing = -surplus(j);
    if (missing > 0) covers_[j][to] += (missing + deployed_[to].replicas - 1) / deployed_[to].replicas;
    // What the last additions made superfluous.
    for (size_t i = 0; i < deployed_.size(); ++i) {
      const int64_t extra = std::min(covers_[j][i], surplus(j) / deployed_[i].replicas);
      if (extra > 0) covers_[j][i] -= extra;
    }
  }

  /// The makespan and how many configurations reach it, as one number to lower.
  std::pair<double, double> rating() const {
    std::vector<double> sorted = seconds_;
    std::sort(sorted.rbegin(), sorted.rend());
    double rest = 0;
    for (const double each : sorted) rest += each * each;
    return {sorted[0], rest};
  }

  template <typename Change>
  bool accepts(const std::vector<size_t>& buckets, const Change& change) {
    std::vector<Cover> saved;
    for (const size_t j : buckets) saved.push_back(covers_[j]);
    const std::vector<double> seconds = seconds_;
    const auto before = rating();
    change();
    for (size_t i = 0; i < deployed_.size(); ++i) seconds_[i] = seconds_of(i);
    const auto after = rating();
    if (after.first < before.first * (1 - rounded_seconds)) return true;
    seconds_ = seconds;
    for (size_t k = buckets.size(); k-- > 0;) covers_[buckets[k]] = saved[k];
    return false;
  }

  bool improve_once() {
    const size_t slowest = static_cast<size_t>(std::max_element(seconds_.begin(), seconds_.end()) - seconds_.begin());
    const size_t buckets = covers_.size();
    for (size_t j = 0; j < buckets; ++j) {
      if (covers_[j][slowest] == 0) continue;
      for (size_t to = 0; to < deployed_.size(); ++to) {
        if (to == slowest || !reaches(to, j)) continue;
        for (const int64_t times : {covers_[j][slowest], (covers_[j][slowest] + 1) / 2, int64_t{2}, int64_t{1}}) {
          if (times > covers_[j][slowest]) continue;
          if (accepts({j}, [&] { shift(j, slowest, to, times); })) return true;
        }
      }
    }
    for (size_t j = 0; j < buckets; ++j) {
      if (covers_[j][slowest] == 0) continue;
      for (size_t to = 0; to < deployed_.size(); ++to) {
        if (to == slowest || !reaches(to, j)) continue;
        for (size_t k = 0; k < buckets; ++k) {
          if (k == j || covers_[k][to] == 0) continue;
          for (size_t back = 0; back < deployed_.size(); ++back) {
            if (back == to || !reaches(back, k)) continue;
            // One, two, or as many as make up for the sequence that comes.
            const std::vector<double>& seconds = deployed_[to].costs->seconds;
            const auto as_long = static_cast<int64_t>(std::ceil(seconds[j] / seconds[k]));
            for (const int64_t times : {int64_t{1}, int64_t{2}, as_long}) {
              if (times > covers_[k][to]) continue;
              if (accepts({j, k}, [&] {
                    shift(j, slowest, to, 1);
                    shift(k, to, back, std::min(times, covers_[k][to]));
                  })) {
                return true;
              }
            }
          }
        }
      }
    }
    return false;
  }

  const std::vector<DeployedCosts>& deployed_;
  std::span<const int64_t> sequences_;
  std::vector<Cover> covers_;
  std::vector<double> seconds_;
};

/// Depth-first over the buckets, dearest first; a cover is tried when its weighted excess over the bucket's minimum, with
/// that of the buckets before it, still fits below the best makespan.
class CoverSearch {
 public:
  CoverSearch(CoverBound& bound, std::span<const int64_t> sequences, std::span<const double> weights, int64_t nodes)
      : deployed_(bound.deployed()), sequences_(sequences), bound_(bound), weights_(weights), nodes_(nodes) {
    bound_.evaluate(weights_);
    minimum_ = bound_.cover_costs();
    for (size_t j = 0; j < sequences_.size(); ++j) {
      if (sequences_[j] > 0) order_.push_back(j);
      total_ += minimum_[j];
    }
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      const size_t choices_a = choices(a), choices_b = choices(b);
      return choices_a != choices_b ? choices_a < choices_b : minimum_[a] > minimum_[b];
    });
  }

  /// Looks for covers below `makespan`; true when the search went to its end. found() holds the best.
  bool run(double makespan, double gap) {
    gap_ = gap;
    best_ = makespan;
    loads_.assign(deployed_.size(), 0);
    current_.assign(sequences_.size(), Cover(deployed_.size(), 0));
    descend(0, total_);
    return nodes_ > 0;
  }

  const std::vector<Cover>& found() const { return found_; }

 private:
  size_t choices(size_t j) const {
    size_t count = 0;
    for (const DeployedCosts& each : deployed_) count += j < each.costs->reach();
    return count;
  }

  double target() const { return best_ * (1 - std::max(gap_, rounded_seconds)); }

  /// The most weighted cost that fits below the target.
  double budget() const {
    double sum = 0;
    for (size_t i = 0; i < deployed_.size(); ++i) sum += weights_[i] * std::max(0.0, target() - deployed_[i].costs->fill);
    return sum * (1 + rounded_seconds);
  }

  void descend(size_t depth, double cost) {
    if (depth == order_.size()) {
      best_ = 0;
      for (size_t i = 0; i < deployed_.size(); ++i) best_ = std::max(best_, loads_[i] > 0 ? loads_[i] + deployed_[i].costs->fill : 0);
      found_ = current_;
      return;
    }
    const size_t j = order_[depth];
    choose(depth, j, 0, sequences_[j], cost - minimum_[j]);
  }

  /// Configuration i's part in covering what is `missing` of bucket j; `cost`: that of everything chosen so far and the
  /// minima of the buckets to come.
  void choose(size_t depth, size_t j, size_t i, int64_t missing, double cost) {
    if (nodes_ <= 0 || --nodes_ <= 0) return;
    if (cost > budget()) return;
    if (missing <= 0) return descend(depth + 1, cost);
    if (i == deployed_.size()) return;
    if (j >= deployed_[i].costs->reach()) return choose(depth, j, i + 1, missing, cost);
    const double seconds = deployed_[i].costs->seconds[j];
    const int64_t all = (missing + deployed_[i].replicas - 1) / deployed_[i].replicas;
    const double load = loads_[i], fill = deployed_[i].costs->fill;
    bool is_last = true;
    for (size_t k = i + 1; k < deployed_.size(); ++k) is_last = is_last && j >= deployed_[k].costs->reach();
    for (int64_t q = all; q >= (is_last ? all : 0); --q) {
      loads_[i] = load + static_cast<double>(q) * seconds;
      if (loads_[i] > 0 && loads_[i] + fill > target()) continue;
      current_[j][i] = q;
      choose(depth, j, i + 1, missing - q * deployed_[i].replicas, cost + weights_[i] * static_cast<double>(q) * seconds);
      if (nodes_ <= 0) break;
    }
    current_[j][i] = 0;
    loads_[i] = load;
  }

  const std::vector<DeployedCosts>& deployed_;
  std::span<const int64_t> sequences_;
  CoverBound& bound_;
  std::span<const double> weights_;
  int64_t nodes_;
  double gap_ = 0;
  std::vector<double> minimum_;
  double total_ = 0;
  std::vector<size_t> order_;
  double best_ = 0;
  std::vector<double> loads_;
  std::vector<Cover> current_, found_;
};

/// Sequences by configuration from covers; what a cover has too much is taken from where it saves most.
std::vector<std::vector<int64_t>> sequences_of(const std::vector<DeployedCosts>& deployed, std::span<const BucketCosts> costs,
                                               std::span<const int64_t> replicas, std::span<const int64_t> sequences,
                                               const std::vector<Cover>& covers) {
  std::vector<std::vector<int64_t>> result(costs.size(), std::vector<int64_t>(sequences.size(), 0));
  for (size_t j = 0; j < sequences.size(); ++j) {
    int64_t left = sequences[j];
    for (size_t k = 0, i = 0; i < costs.size(); ++i) {
      if (replicas[i] == 0) continue;
      const int64_t taken = std::min(left, covers[j][k] * deployed[k].replicas);
      result[i][j] = taken;
      left -= taken;
      ++k;
    }
    COTUNE_CHECK(left == 0, "bucket {}: {} sequences are not covered", j, left);
  }
  return result;
}

Dispatch finish(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                std::vector<std::vector<int64_t>> sequences, double lower_bound) {
  Dispatch dispatch;
  dispatch.seconds = dispatch_seconds(costs, replicas, sequences);
  dispatch.sequences = std::move(sequences);
  dispatch.makespan = *std::max_element(dispatch.seconds.begin(), dispatch.seconds.end());
  dispatch.lower_bound = std::min(lower_bound, dispatch.makespan);
  return dispatch;
}

}  // namespace

std::vector<double> dispatch_seconds(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                                     const std::vector<std::vector<int64_t>>& sequences) {
  std::vector<double> seconds(costs.size(), 0);
  for (size_t i = 0; i < costs.size(); ++i) {
    for (size_t j = 0; j < sequences[i].size(); ++j) {
      const int64_t d = sequences[i][j];
      if (d == 0) continue;
      COTUNE_CHECK(replicas[i] > 0 && j < costs[i].reach(), "configuration {} cannot take bucket {}", i, j);
      seconds[i] += static_cast<double>((d + replicas[i] - 1) / replicas[i]) * costs[i].seconds[j];
    }
    if (seconds[i] > 0) seconds[i] += costs[i].fill;
  }
  return seconds;
}

Dispatch dispatch_greedily(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                           std::span<const int64_t> sequences) {
  std::vector<std::vector<int64_t>> result(costs.size(), std::vector<int64_t>(sequences.size(), 0));
  std::vector<double> load(costs.size(), 0);
  for (size_t j = 0; j < sequences.size(); ++j) {
    if (sequences[j] == 0) continue;
    const auto device_seconds = [&](size_t i) { return static_cast<double>(costs[i].devices) * costs[i].seconds[j]; };
    size_t best = costs.size();
    for (size_t i = 0; i < costs.size(); ++i) {
      if (replicas[i] == 0 || j >= costs[i].reach()) continue;
      if (best == costs.size() || device_seconds(i) < device_seconds(best)) best = i;
    }
    COTUNE_CHECK(best < costs.size(), "bucket {} fits no deployed configuration", j);
    // One sequence per replica at a time to the group's configuration that ends first.
    for (int64_t left = sequences[j]; left > 0;) {
      size_t next = best;
      for (size_t i = 0; i < costs.size(); ++i) {
        if (replicas[i] == 0 || costs[i].reach() != costs[best].reach()) continue;
        if (load[i] + costs[i].seconds[j] < load[next] + costs[next].seconds[j]) next = i;
      }
      const int64_t taken = std::min(left, replicas[next]);
      result[next][j] += taken;
      load[next] += costs[next].seconds[j];
      left -= taken;
    }
  }
  CoverBound bound(sequences);
  bound.deploy(costs, replicas);
  return finish(costs, replicas, std::move(result), improve_weights(bound, 1, 1).bound);
}

double dispatch_lower_bound(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                            std::span<const int64_t> sequences, int rounds, double enough) {
  CoverBound bound(sequences);
  if (!bound.deploy(costs, replicas)) return std::numeric_limits<double>::infinity();
  return improve_weights(bound, rounds, enough).bound;
}

Dispatch dispatch_balanced(std::span<const BucketCosts> costs, std::span<const int64_t> replicas,
                           std::span<const int64_t> sequences, const DispatchLimits& limits) {
  CoverBound bound(sequences);
  COTUNE_CHECK(bound.deploy(costs, replicas), "a bucket fits no deployed configuration");
  const std::vector<DeployedCosts>& deployed = bound.deployed();
  double best = std::numeric_limits<double>::infinity();
  std::vector<Cover> covers;
  double least_start = best;
  // Covers of good weights nearly balance the loads. The first ones and those that start better than any before are
  // improved; the best makespan is what the bound is driven to.
  const auto try_covers = [&] {
    Assignment assignment(deployed, sequences, bound.covers());
    if (assignment.makespan() < least_start) {
      least_start = assignment.makespan();
      assignment.improve();
      if (assignment.makespan() < best) {
        best = assignment.makespan();
        covers = assignment.covers();
      }
    }
    return std::min(best * (1 - limits.gap), limits.cutoff);
  };
  const BestWeights weights = improve_weights(bound, limits.rounds, 0, try_covers);
  double lower_bound = weights.bound;
  if (limits.nodes > 0 && lower_bound < std::min(best * (1 - limits.gap), limits.cutoff)) {
    CoverSearch search(bound, sequences, weights.weights, limits.nodes);
    const bool is_complete = search.run(best, limits.gap);
    if (!search.found().empty()) {
      Assignment assignment(deployed, sequences, search.found());
      assignment.improve();
      best = assignment.makespan();
      covers = assignment.covers();
    }
    if (is_complete) lower_bound = std::max(lower_bound, best * (1 - std::max(limits.gap, rounded_seconds)));
  }
  if (limits.gap <= 0 && lower_bound >= best * (1 - 2 * rounded_seconds)) lower_bound = best;
  return finish(costs, replicas, sequences_of(deployed, costs, replicas, sequences, covers), lower_bound);
}

}  // namespace cotune
