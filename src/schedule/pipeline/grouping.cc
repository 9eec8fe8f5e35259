#include "schedule/pipeline/grouping.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace cotune {
namespace {

constexpr size_t most_exact_tasks = 12;

/// Task indices, longest first, then as they stand.
std::vector<int32_t> longest_first(std::span<const double> latencies) {
  std::vector<int32_t> tasks(latencies.size());
  std::iota(tasks.begin(), tasks.end(), 0);
  std::stable_sort(tasks.begin(), tasks.end(), [&](int32_t a, int32_t b) {
    return latencies[static_cast<size_t>(a)] > latencies[static_cast<size_t>(b)];
  });
  return tasks;
}

double load(std::span<const double> latencies, const std::vector<int32_t>& bucket) {
  double sum = 0;
  for (const int32_t task : bucket) sum += latencies[static_cast<size_t>(task)];
  return sum;
}

/// The mean load is the same whatever the buckets, so the least sum of squares is the least imbalance.
double sum_of_squares(std::span<const double> latencies, const Buckets& buckets) {
  double sum = 0;
  for (const std::vector<int32_t>& bucket : buckets) sum += load(latencies, bucket) * load(latencies, bucket);
  return sum;
}

Buckets sorted(Buckets buckets) {
  for (std::vector<int32_t>& bucket : buckets) std::sort(bucket.begin(), bucket.end());
  std::sort(buckets.begin(), buckets.end());
  return buckets;
}

/// Puts tasks, longest first, into every bucket begun and into one new one; cuts off what is no better than
/// the best.
class ExactBalance {
 public:
  ExactBalance(std::span<const double> latencies, int64_t bucket_count)
      : latencies_(latencies),
        bucket_count_(static_cast<size_t>(bucket_count)),
        tasks_(longest_first(latencies)),
        best_(balanced_buckets_by_exchange(latencies, bucket_count)),
        best_squares_(sum_of_squares(latencies, best_)) {}

  Buckets run() {
    place(0, 0);
    return sorted(best_);
  }

 private:
  void place(size_t next, double squares) {
    if (squares >= best_squares_ * (1 - 1e-12)) return;  // loads only grow
    if (next == tasks_.size()) {
      best_squares_ = squares;
      best_ = buckets_;
      return;
    }
    const size_t left = tasks_.size() - next;
    const double latency = latencies_[static_cast<size_t>(tasks_[next])];
    if (left > bucket_count_ - buckets_.size()) {  // else each of the rest must begin a bucket
      for (size_t b = 0; b < buckets_.size(); ++b) {
        const double before = loads_[b];
        buckets_[b].push_back(tasks_[next]);
        loads_[b] += latency;
        place(next + 1, squares - before * before + loads_[b] * loads_[b]);
        loads_[b] = before;
        buckets_[b].pop_back();
      }
    }
    if (buckets_.size() < bucket_count_) {
      buckets_.push_back({tasks_[next]});
      loads_.push_back(latency);
      place(next + 1, squares + latency * latency);
      loads_.pop_back();
      buckets_.pop_back();
    }
  }

  std::span<const double> latencies_;
  size_t bucket_count_;
  std::vector<int32_t> tasks_;
  Buckets best_;
  double best_squares_;
  Buckets buckets_;
  std::vector<double> loads_;
};

/// One move or exchange between two buckets that lessens the sum of squares; whether there was one.
bool improve(std::span<const double> latencies, std::vector<int32_t>& from, std::vector<int32_t>& to) {
  const double difference = load(latencies, from) - load(latencies, to);
  // Shifting d from one to the other changes the sum of squares by 2d(d - difference).
  const auto helps = [&](double shift) {
    return shift * (shift - difference) < -1e-12 * (1 + difference * difference);
  };
  for (size_t i = 0; i < from.size(); ++i) {
    const double out = latencies[static_cast<size_t>(from[i])];
    if (from.size() > 1 && helps(out)) {
      to.push_back(from[i]);
      from.erase(from.begin() + static_cast<std::ptrdiff_t>(i));
      return true;
    }
    for (size_t j = 0; j < to.size(); ++j) {
      if (helps(out - latencies[static_cast<size_t>(to[j])])) {
        std::swap(from[i], to[j]);
        return true;
      }
    }
  }
  return false;
}

}  // namespace

double imbalance(std::span<const double> latencies, const Buckets& buckets) {
  const double mean =
      std::accumulate(latencies.begin(), latencies.end(), 0.0) / static_cast<double>(buckets.size());
  double sum = 0;
  for (const std::vector<int32_t>& bucket : buckets) {
    const double off = load(latencies, bucket) - mean;
    sum += off * off;
  }
  return sum;
}

Buckets balanced_buckets_by_exchange(std::span<const double> latencies, int64_t bucket_count) {
  COTUNE_CHECK(bucket_count >= 1 && bucket_count <= static_cast<int64_t>(latencies.size()),
               "{} buckets for {} tasks", bucket_count, latencies.size());
  Buckets buckets(static_cast<size_t>(bucket_count));
  const std::vector<int32_t> tasks = longest_first(latencies);
  for (size_t i = 0; i < tasks.size(); ++i) {
    // The first tasks begin a bucket each, so that none stays empty where latencies are zero.
    const auto emptiest = std::min_element(buckets.begin(), buckets.end(), [&](const auto& a, const auto& b) {
      return load(latencies, a) < load(latencies, b);
    });
    std::vector<int32_t>& bucket = i < buckets.size() ? buckets[i] : *emptiest;
    bucket.push_back(tasks[i]);
  }
  for (bool moved = true; moved;) {
    moved = false;
    for (std::vector<int32_t>& from : buckets) {
      for (std::vector<int32_t>& to : buckets) {
        while (&from != &to && improve(latencies, from, to)) moved = true;
      }
    }
  }
  return sorted(std::move(buckets));
}

Buckets balanced_buckets(std::span<const double> latencies, int64_t bucket_count) {
  if (latencies.size() > most_exact_tasks) return balanced_buckets_by_exchange(latencies, bucket_count);
  return ExactBalance(latencies, bucket_count).run();
}

Buckets balanced_pairs(std::span<const double> latencies, int64_t bucket_count) {
  const auto count = static_cast<int64_t>(latencies.size());
  COTUNE_CHECK(bucket_count <= count && count <= 2 * bucket_count, "{} tasks in {} buckets of two at most", count, bucket_count);
  const std::vector<int32_t> tasks = longest_first(latencies);
  Buckets buckets;
  for (int64_t bucket = 0; bucket < bucket_count; ++bucket) {
    const int64_t partner = 2 * bucket_count - 1 - bucket;
    buckets.push_back({tasks[static_cast<size_t>(bucket)]});
    if (partner < count) buckets.back().push_back(tasks[static_cast<size_t>(partner)]);
  }
  return sorted(std::move(buckets));
}

}  // namespace cotune
