#include "plan/deployment/plan_search.h"

#include <algorithm>
#include <cmath>

#include "base/never.h"
#include "plan/deployment/even_bound.h"
#include "plan/deployment/replica_counts.h"

namespace cotune {
PlanSearch::PlanSearch(std::span<const BucketCosts> costs, std::span<const int64_t> sequences,
                       const DeploymentLimits& limits, int64_t devices)
    : costs_(costs),
      sequences_(sequences),
      limits_(limits),
      devices_(devices),
      pattern_bound_(costs, sequences),
      cover_bound_(sequences) {
  for (const BucketCosts& each : costs) sizes_.push_back(each.devices);
}

double PlanSearch::run(int64_t count) {
  const double least = least_seconds(costs_, sequences_, devices_);
  if (least == never) return never;
  least_of_all_ = least;
  const double proven = is_by_row() && count <= limits_.enumerated ? look_at_all() : 0;
  if (proven == never || (proven > 0 && proven >= target())) return proven;
  const double of_others = std::max(proven, search_near_relaxation(least));
  for (ConsideredPlan& each : considered_) each.lower_bound = std::max(each.lower_bound, std::min(least_of_all_, each.makespan));
  return of_others;
}

double PlanSearch::search_near_relaxation(double least) {
  const int64_t devices = devices_;
  // The time that the relaxation needs, within 2 %: infeasible at low, feasible at high.
  double low = least, high = least;
  DeviceBound relaxed = pattern_bound_.least_devices(high * (1 + 1e-9), devices);
  while (!(relaxed.devices <= static_cast<double>(devices))) {
    low = high;
    high *= 1.5;
    relaxed = pattern_bound_.least_devices(high, devices);
  }
  while (high > low * 1.02) {
    const double middle = 0.5 * (low + high);
    DeviceBound now = pattern_bound_.least_devices(middle, devices, 20);
    if (now.devices > static_cast<double>(devices)) {
      low = middle;
    } else {
      high = middle;
      relaxed = std::move(now);
    }
  }
  least_of_all_ = low;
  improve(rounded(relaxed.replicas));
  if (best_ == never) {
    const std::vector<int64_t> plan = first_that_holds_all();
    if (plan.empty()) return 0;
    improve(plan);
  }
  return is_by_row() ? std::min(best_, raised(low)) : prove(low);
}

double PlanSearch::look_at_all() {
  std::vector<std::pair<double, std::vector<int64_t>>> plans;
  for_each_plan(sizes_, devices_, [&](std::span<const int64_t> replicas) {
    const double bound = plan_bound(costs_, sequences_, replicas);
    if (bound < never) plans.emplace_back(bound, std::vector<int64_t>(replicas.begin(), replicas.end()));
    return true;
  });
  std::sort(plans.begin(), plans.end());
  for (const auto& [bound, plan] : plans) {
    if (bound >= best_) break;
    look(plan);
  }
  return plans.empty() ? never : std::min(plans.front().first, best_);
}

double PlanSearch::raised(double low) {
  double high = best_;
  while (low < target() && high - low > 0.5 * limits_.gap * best_) {
    const double middle = 0.5 * (low + high);
    (pattern_bound_.least_devices(middle, devices_).devices > static_cast<double>(devices_) ? low : high) = middle;
  }
  least_of_all_ = std::max(least_of_all_, low);
  return low;
}

std::vector<int64_t> PlanSearch::rounded(const std::vector<double>& counts) const {
  std::vector<int64_t> plan(width(), 0);
  int64_t left = devices_;
  for (size_t i = width(); i-- > 0;) {  // the farthest-reaching first: without them nothing is deployed
    plan[i] = std::min(left / sizes_[i], static_cast<int64_t>(std::ceil(counts[i] - 1e-6)));
    left -= plan[i] * sizes_[i];
  }
  while (left > 0) {
    size_t best = width();
    for (size_t i = 0; i < width(); ++i) {
      if (sizes_[i] <= left && (best == width() || counts[i] > counts[best])) best = i;
    }
    if (best == width()) break;
    ++plan[best];
    left -= sizes_[best];
  }
  return left == 0 ? plan : std::vector<int64_t>();
}

std::vector<int64_t> PlanSearch::first_that_holds_all() const {
  std::vector<int64_t> plan;
  int64_t count = 0;
  for_each_plan(sizes_, devices_, [&](std::span<const int64_t> replicas) {
    if (plan_bound(costs_, sequences_, replicas) < never) plan.assign(replicas.begin(), replicas.end());
    return plan.empty() && ++count < limits_.plans;
  });
  return plan;
}

bool PlanSearch::look(const std::vector<int64_t>& plan) {
  if (!looked_.insert(plan).second) return false;
  if (is_by_row()) {
    const RowDispatch rows = dispatch_rows(costs_, plan, sequences_);
    if (rows.empty()) return false;
    considered_.push_back({plan, 0, rows.makespan});
    const bool is_better = rows.makespan < best_;
    best_ = std::min(best_, rows.makespan);
    return is_better;
  }
  if (!cover_bound_.deploy(costs_, plan)) return false;
  if (best_ < never && improve_weights(cover_bound_, 6, target()).bound >= target()) return false;
  DispatchLimits quick{.gap = limits_.gap, .nodes = 0, .rounds = 40};
  if (best_ < never) quick.cutoff = target();
  const Dispatch dispatch = dispatch_balanced(costs_, plan, sequences_, quick);
  if (dispatch.lower_bound >= target() && dispatch.makespan >= best_) return false;
  considered_.push_back({plan, dispatch.lower_bound, dispatch.makespan});
  if (dispatch.makespan >= best_) return false;
  best_ = dispatch.makespan;
  return true;
}

void PlanSearch::improve(std::vector<int64_t> plan) {
  if (plan.empty()) return;
  look(plan);
  for (bool is_better = true; is_better;) {
    is_better = false;
    for (int64_t times : {8, 4, 2, 1}) {
      for (size_t from = 0; from < width(); ++from) {
        for (size_t to = 0; to < width(); ++to) {
          const int64_t moved = times * std::max(sizes_[from], sizes_[to]);
          if (from == to || moved % sizes_[from] != 0 || moved % sizes_[to] != 0) continue;
          std::vector<int64_t> changed = plan;
          changed[from] -= moved / sizes_[from];
          changed[to] += moved / sizes_[to];
          if (changed[from] < 0 || !look(changed)) continue;
          plan = std::move(changed);
          is_better = true;
        }
      }
    }
  }
}

double PlanSearch::prove(double low) {
  for (int attempt = 0; attempt < 8 && low < target(); ++attempt) {
    const double before = best_;
    cuts_ = pattern_bound_.least_devices(target(), devices_);
    if (cuts_.devices > static_cast<double>(devices_)) return target();
    steps_ = 0;
    std::vector<int64_t> plan(width(), 0);
    prepare_cuts();
    std::vector<double> have(cuts_.cuts.size(), 0);
    open_ = 0;
    if (walk(0, devices_, plan, have)) return target();
    if (best_ >= before * (1 - 0.002)) break;
  }
  if (low >= target()) return low;
  open_ = 1;  // too many are left
  return raised_by_even_shares(raised(low));
}

double PlanSearch::raised_by_even_shares(double low) {
  EvenBound bound(costs_, sequences_, devices_);
  double high = best_;  // of what is asked: not known to be reached
  for (int rounds = 120; low < target() && high - low > 0.005 * best_; rounds = 40) {
    const double middle = 0.5 * (low + high);
    if (bound.rules_out(middle, rounds, 25)) {
      low = middle;
    } else {
      high = middle;
      improve(rounded({bound.best_plan().begin(), bound.best_plan().end()}));
      high = std::min(high, best_);
    }
  }
  least_of_all_ = std::max(least_of_all_, low);
  return low;
}

void PlanSearch::prepare_cuts() {
  constexpr size_t most_cuts = 12;  // the last ones are the tightest
  std::vector<CountCut>& cuts = cuts_.cuts;
  if (cuts.size() > most_cuts) cuts.erase(cuts.begin(), cuts.end() - most_cuts);
  per_device_.assign(cuts.size(), std::vector<double>(width() + 1, 0));
  for (size_t c = 0; c < cuts.size(); ++c) {
    for (size_t i = width(); i-- > 0;) {
      per_device_[c][i] = std::max(per_device_[c][i + 1], cuts[c].worth[i] / static_cast<double>(sizes_[i]));
    }
  }
}

bool PlanSearch::walk(size_t i, int64_t left, std::vector<int64_t>& plan, std::vector<double>& have) {
  if (++steps_ > limits_.plans || static_cast<int64_t>(considered_.size()) >= limits_.close_looks) return false;
  for (size_t c = 0; c < have.size(); ++c) {
    const double most = have[c] + static_cast<double>(left) * per_device_[c][i];
    if (most < cuts_.cuts[c].demand * (1 - 1e-9)) return true;
  }
  if (i == width()) {
    look(plan);
    return true;
  }
  const std::vector<double> before = have;
  const bool is_last = i + 1 == width();
  bool is_complete = true;
  for (int64_t count = is_last ? left / sizes_[i] : 0; count * sizes_[i] <= left && is_complete; ++count) {
    if (is_last && count * sizes_[i] != left) break;
    plan[i] = count;
    for (size_t c = 0; c < have.size(); ++c) have[c] = before[c] + static_cast<double>(count) * cuts_.cuts[c].worth[i];
    is_complete = walk(i + 1, left - count * sizes_[i], plan, have);
  }
  plan[i] = 0;
  have = before;
  return is_complete;
}

}  // namespace cotune
