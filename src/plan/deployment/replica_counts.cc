#include "plan/deployment/replica_counts.h"

#include <algorithm>
#include <vector>

#include "base/never.h"

namespace cotune {
namespace {

/// Of one sequence.
double device_seconds(const BucketCosts& costs, size_t bucket) {
  return static_cast<double>(costs.devices) / static_cast<double>(costs.copies) * costs.seconds[bucket];
}

bool visit_plans(std::span<const int64_t> sizes, size_t i, int64_t left, std::vector<int64_t>& plan,
                 const std::function<bool(std::span<const int64_t>)>& visit) {
  if (i + 1 == sizes.size()) {
    if (left % sizes[i] != 0) return true;
    plan[i] = left / sizes[i];
    return visit(plan);
  }
  for (int64_t count = 0; count * sizes[i] <= left; ++count) {
    plan[i] = count;
    if (!visit_plans(sizes, i + 1, left - count * sizes[i], plan, visit)) return false;
  }
  plan[i] = 0;
  return true;
}

}  // namespace

void for_each_plan(std::span<const int64_t> sizes, int64_t total,
                   const std::function<bool(std::span<const int64_t>)>& visit) {
  if (sizes.empty()) return;
  std::vector<int64_t> plan(sizes.size(), 0);
  visit_plans(sizes, 0, total, plan, visit);
}

int64_t count_plans(std::span<const int64_t> sizes, int64_t total) {
  std::vector<int64_t> ways(static_cast<size_t>(total) + 1, 0);
  ways[0] = 1;
  for (const int64_t size : sizes) {
    for (int64_t sum = size; sum <= total; ++sum) {
      int64_t& at = ways[static_cast<size_t>(sum)];
      at = std::min<int64_t>(at + ways[static_cast<size_t>(sum - size)], 1'000'000'000'000'000'000);
    }
  }
  return ways.back();
}

double least_seconds(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, int64_t devices) {
  double longest = 0, total = 0;
  for (size_t j = 0; j < sequences.size(); ++j) {
    if (sequences[j] == 0) continue;
    double least = never, alone = never;
    for (const BucketCosts& each : costs) {
      if (j >= each.reach() || each.devices > devices) continue;
      least = std::min(least, device_seconds(each, j));
      alone = std::min(alone, each.seconds[j] + each.fill);
    }
    total += static_cast<double>(sequences[j]) * least;
    longest = std::max(longest, alone);
  }
  return std::max(longest, total / static_cast<double>(devices));
}

double support_bound(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, uint64_t support,
                     int64_t devices) {
  double total = 0;
  for (size_t j = 0; j < sequences.size(); ++j) {
    if (sequences[j] == 0) continue;
    double least = never;
    for (size_t i = 0; i < costs.size(); ++i) {
      if ((support >> i & 1) == 0 || j >= costs[i].reach()) continue;
      least = std::min(least, device_seconds(costs[i], j));
    }
    total += static_cast<double>(sequences[j]) * least;
  }
  return total / static_cast<double>(devices);
}

double longest_alone(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, uint64_t support) {
  double longest = 0;
  for (size_t j = 0; j < sequences.size(); ++j) {
    if (sequences[j] == 0) continue;
    double least = never;
    for (size_t i = 0; i < costs.size(); ++i) {
      if ((support >> i & 1) == 1 && j < costs[i].reach()) least = std::min(least, costs[i].seconds[j] + costs[i].fill);
    }
    longest = std::max(longest, least);
  }
  return longest;
}

double plan_bound(std::span<const BucketCosts> costs, std::span<const int64_t> sequences,
                  std::span<const int64_t> plan) {
  uint64_t support = 0;
  for (size_t i = 0; i < costs.size(); ++i) support |= uint64_t{plan[i] > 0} << i;
  const double work = support_bound(costs, sequences, support, 1);
  if (work == never) return never;
  std::vector<size_t> by_fill;
  for (size_t i = 0; i < costs.size(); ++i) {
    if (plan[i] > 0) by_fill.push_back(i);
  }
  std::stable_sort(by_fill.begin(), by_fill.end(), [&](size_t a, size_t b) { return costs[a].fill < costs[b].fill; });
  double devices = 0, filled = 0, least = never;
  for (const size_t i : by_fill) {
    const auto size = static_cast<double>(plan[i] * costs[i].devices);
    devices += size;
    filled += size * costs[i].fill;
    least = std::min(least, (work + filled) / devices);
  }
  return least;
}

}  // namespace cotune
