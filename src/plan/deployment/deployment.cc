#include "plan/deployment/deployment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>

#include "base/error.h"
#include "plan/deployment/dispatch_bound.h"
#include "plan/deployment/pattern_bound.h"

namespace cotune {
namespace {

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

constexpr double infinity = std::numeric_limits<double>::infinity();

/// How many vectors of counts add up to `total`; at most a quintillion.
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

/// No replica that is given a row of the longest bucket ends sooner; nor does any deployment whose devices are all busy with
/// the configuration that is cheapest for each bucket.
double least_seconds(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, int64_t devices) {
  double longest = 0, total = 0;
  for (size_t j = 0; j < sequences.size(); ++j) {
    if (sequences[j] == 0) continue;
    double least = infinity, alone = infinity;
    for (const BucketCosts& each : costs) {
      if (j >= each.reach() || each.devices > devices) continue;
      least = std::min(least, static_cast<double>(each.devices) * each.seconds[j]);
      alone = std::min(alone, each.seconds[j] + each.fill);
    }
    total += static_cast<double>(sequences[j]) * least;
    longest = std::max(longest, alone);
  }
  return std::max(longest, total / static_cast<double>(devices));
}

/// Σ_j B_j·min_i n_i·c_ij over the deployed configurations, over all devices: what no dispatch can beat, by which
/// configurations are deployed alone. Infinite where a bucket fits none.
double support_bound(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, uint64_t support,
                     int64_t devices) {
  double total = 0;
  for (size_t j = 0; j < sequences.size(); ++j) {
    if (sequences[j] == 0) continue;
    double least = infinity;
    for (size_t i = 0; i < costs.size(); ++i) {
      if ((support >> i & 1) == 0 || j >= costs[i].reach()) continue;
      least = std::min(least, static_cast<double>(costs[i].devices) * costs[i].seconds[j]);
    }
    total += static_cast<double>(sequences[j]) * least;
  }
  return total / static_cast<double>(devices);
}

class DeploymentSearch {
 public:
  DeploymentSearch(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, const DeploymentLimits& limits)
      : costs_(costs), sequences_(sequences), limits_(limits) {
    for (const BucketCosts& each : costs) sizes_.push_back(each.devices);
  }

  Deployment run(int64_t devices) {
    for (int64_t total = devices; total > 0 && result_.empty(); --total) {
      result_ = {};
      const int64_t count = count_plans(sizes_, total);
      if (count == 0) continue;
      if (limits_.dealing == Dealing::by_row || (limits_.filter == PlanFilter::exact && count > limits_.enumerated)) {
        search(total, count);
        continue;
      }
      enumerate(total);
      if (plans_.empty()) continue;
      bound_plans();
      solve_plans();
    }
    return std::move(result_);
  }

 private:
  static bool by_makespan(const ConsideredPlan& a, const ConsideredPlan& b) { return a.makespan < b.makespan; }

  size_t width() const { return costs_.size(); }
  std::span<const int64_t> plan(size_t index) const { return {plans_.data() + index * width(), width()}; }

  void enumerate(int64_t total) {
    std::vector<double> by_support(size_t{1} << width(), -1);
    for_each_plan(sizes_, total, [&](std::span<const int64_t> replicas) {
      if (result_.enumerated == limits_.plans) {
        result_.truncated = true;
        return false;
      }
      ++result_.enumerated;
      uint64_t support = 0;
      for (size_t i = 0; i < width(); ++i) support |= uint64_t{replicas[i] > 0} << i;
      double& bound = by_support[support];
      if (bound < 0) bound = support_bound(costs_, sequences_, support, total);
      if (bound == infinity) {
        ++result_.unable;
      } else {
        plans_.insert(plans_.end(), replicas.begin(), replicas.end());
        bounds_.emplace_back(bound, bounds_.size());
      }
      return true;
    });
  }

  /// First bounds, ascending: by device weights, which is LobRA's Theorem 1, with whole sequences; the paper's own by the
  /// greedy dispatch.
  void bound_plans() {
    CoverBound cover_bound(sequences_);
    std::vector<double> paper_bounds;
    for (auto& [bound, index] : bounds_) {
      cover_bound.deploy(costs_, plan(index));
      bound = std::max(bound, improve_weights(cover_bound, 1, 1).bound);
      if (limits_.filter == PlanFilter::paper) paper_bounds.push_back(greedy_bound(plan(index)));
    }
    if (limits_.filter == PlanFilter::paper) {
      const double most = *std::min_element(paper_bounds.begin(), paper_bounds.end()) * (1 + limits_.theta);
      const size_t before = bounds_.size();
      std::erase_if(bounds_, [&](const auto& each) { return paper_bounds[each.second] > most; });
      result_.bounded += static_cast<int64_t>(before - bounds_.size());
    }
    std::sort(bounds_.begin(), bounds_.end());
  }

  double greedy_bound(std::span<const int64_t> replicas) const {
    const Dispatch greedy = dispatch_greedily(costs_, replicas, sequences_);
    double device_seconds = 0, devices = 0;
    for (size_t i = 0; i < width(); ++i) {
      device_seconds += static_cast<double>(replicas[i] * sizes_[i]) * greedy.seconds[i];
      devices += static_cast<double>(replicas[i] * sizes_[i]);
    }
    return device_seconds / devices;
  }

  void solve_plans() {
    const bool is_exact = limits_.filter == PlanFilter::exact;
    double best = infinity, least_open = infinity;
    int64_t looks = 0;
    std::vector<ConsideredPlan> solved;
    for (size_t k = 0; k < bounds_.size(); ++k) {
      const auto [bound, index] = bounds_[k];
      const double enough = best * (1 - limits_.gap);
      const auto left = static_cast<int64_t>(bounds_.size() - k);
      if (is_exact && (bound >= enough || looks == limits_.close_looks)) {
        (bound >= enough ? result_.bounded : result_.open) += left;
        least_open = std::min(least_open, bound);
        break;
      }
      ++looks;
      DispatchLimits quick{.gap = limits_.gap, .nodes = 0, .rounds = 40};
      if (is_exact) quick.cutoff = enough;
      const Dispatch dispatch = dispatch_balanced(costs_, plan(index), sequences_, quick);
      const double raised = std::max(bound, dispatch.lower_bound);
      if (is_exact && raised >= enough && dispatch.makespan >= best) {
        ++result_.bounded;
        least_open = std::min(least_open, raised);
        continue;
      }
      ++result_.solved;
      solved.push_back({{plan(index).begin(), plan(index).end()}, raised, dispatch.makespan});
      best = std::min(best, dispatch.makespan);
    }
    finish(solved, least_open);
  }

  /// least_open: no plan but those of `solved` takes less, 0 where that is unknown.
  void finish(std::vector<ConsideredPlan>& solved, double least_open) {
    refine(solved);
    for (const ConsideredPlan& each : solved) least_open = std::min(least_open, each.lower_bound);
    const bool is_bounded = !result_.truncated && limits_.filter != PlanFilter::paper;
    result_.lower_bound = is_bounded ? std::min(least_open, result_.dispatch.makespan) : 0;
    std::erase_if(solved, [&](const ConsideredPlan& each) { return each.replicas == result_.replicas; });
    if (solved.size() > 10) solved.resize(10);
    result_.runners_up = std::move(solved);
  }

  /// Solves the plans whose makespan may be the least again, with the search; sorts by makespan.
  void refine(std::vector<ConsideredPlan>& solved) {
    std::stable_sort(solved.begin(), solved.end(), by_makespan);
    constexpr int64_t most_refined = 64;
    double best = infinity;
    int64_t refined = 0;
    for (ConsideredPlan& each : solved) {
      if (each.lower_bound >= best * (1 - limits_.gap)) continue;
      if (refined++ == most_refined) break;
      const Dispatch dispatch = dispatch_balanced(costs_, each.replicas, sequences_, limits_.dispatch);
      each.lower_bound = std::max(each.lower_bound, dispatch.lower_bound);
      if (dispatch.makespan < each.makespan) each.makespan = dispatch.makespan;
      if (dispatch.makespan >= best) continue;
      best = dispatch.makespan;
      result_.replicas = each.replicas;
      result_.dispatch = dispatch;
    }
    std::stable_sort(solved.begin(), solved.end(), by_makespan);
  }

  // Where there are too many plans to list: a bound over all of them at once gives cuts on the counts, and a good plan from
  // its fractional one is improved; the plans that the cuts leave are walked through.

  void search(int64_t devices, int64_t count) {
    result_.enumerated = count;
    const double least = least_seconds(costs_, sequences_, devices);
    if (least == infinity) {
      result_.unable = count;
      return;
    }
    devices_ = devices;
    best_ = infinity;
    considered_.clear();
    looked_.clear();
    pattern_bound_.emplace(costs_, sequences_);
    cover_bound_.emplace(sequences_);
    double proven = is_by_row() && count <= limits_.enumerated ? look_at_all() : 0;
    if (proven == infinity) {
      result_.unable = count;
      return;
    }
    if (proven <= 0 || proven < target()) proven = std::max(proven, search_near_relaxation(least));
    result_.solved = static_cast<int64_t>(considered_.size());
    result_.bounded = count - result_.solved - result_.open;
    if (is_by_row()) {
      finish_by_row(proven);
    } else {
      finish(considered_, proven);
    }
  }

  /// Looks for plans where the relaxation's best lies; returns the seconds that no plan ends before.
  double search_near_relaxation(double least) {
    const int64_t devices = devices_;
    // The time that the relaxation needs, within 2 %: infeasible at low, feasible at high.
    double low = least, high = least;
    DeviceBound relaxed = pattern_bound_->least_devices(high * (1 + 1e-9), devices);
    while (!(relaxed.devices <= static_cast<double>(devices))) {
      low = high;
      high *= 1.5;
      relaxed = pattern_bound_->least_devices(high, devices);
    }
    while (high > low * 1.02) {
      const double middle = 0.5 * (low + high);
      DeviceBound now = pattern_bound_->least_devices(middle, devices, 20);
      if (now.devices > static_cast<double>(devices)) {
        low = middle;
      } else {
        high = middle;
        relaxed = std::move(now);
      }
    }
    improve(rounded(relaxed.replicas));
    if (best_ == infinity) {
      const std::vector<int64_t> plan = first_that_holds_all();
      if (plan.empty()) return 0;
      improve(plan);
    }
    return is_by_row() ? std::min(best_, raised(low)) : prove(low);
  }

  void finish_by_row(double proven) {
    std::stable_sort(considered_.begin(), considered_.end(), by_makespan);
    result_.lower_bound = proven;
    if (considered_.empty()) return;
    result_.replicas = considered_.front().replicas;
    result_.rows = dispatch_rows(costs_, result_.replicas, sequences_);
    result_.dispatch = totals_of(result_.rows, width(), sequences_.size());
    result_.dispatch.lower_bound = proven;
    considered_.erase(considered_.begin());
    if (considered_.size() > 10) considered_.resize(10);
    result_.runners_up = std::move(considered_);
  }

  bool is_by_row() const { return limits_.dealing == Dealing::by_row; }

  /// Theorem 1 with pipelines' filling: Σ_i p_i·n_i·max(0, τ − fill_i) ≥ the least device seconds of the step.
  double plan_bound(std::span<const int64_t> plan) const {
    uint64_t support = 0;
    for (size_t i = 0; i < width(); ++i) support |= uint64_t{plan[i] > 0} << i;
    const double work = support_bound(costs_, sequences_, support, 1);
    if (work == infinity) return infinity;
    std::vector<size_t> by_fill;
    for (size_t i = 0; i < width(); ++i) {
      if (plan[i] > 0) by_fill.push_back(i);
    }
    std::stable_sort(by_fill.begin(), by_fill.end(), [&](size_t a, size_t b) { return costs_[a].fill < costs_[b].fill; });
    double devices = 0, filled = 0, least = infinity;
    for (const size_t i : by_fill) {
      const auto size = static_cast<double>(plan[i] * sizes_[i]);
      devices += size;
      filled += size * costs_[i].fill;
      least = std::min(least, (work + filled) / devices);
    }
    return least;
  }

  /// Of few plans every one that its bound leaves room for; returns what the least of the bounds and makespans is.
  double look_at_all() {
    std::vector<std::pair<double, std::vector<int64_t>>> plans;
    for_each_plan(sizes_, devices_, [&](std::span<const int64_t> replicas) {
      const double bound = plan_bound(replicas);
      if (bound < infinity) plans.emplace_back(bound, std::vector<int64_t>(replicas.begin(), replicas.end()));
      return true;
    });
    std::sort(plans.begin(), plans.end());
    for (const auto& [bound, plan] : plans) {
      if (bound >= best_) break;
      look(plan);
    }
    return plans.empty() ? infinity : std::min(plans.front().first, best_);
  }

  /// The longest time that the relaxation rules out, from `low` on, within half the gap.
  double raised(double low) {
    double high = best_;
    while (low < target() && high - low > 0.5 * limits_.gap * best_) {
      const double middle = 0.5 * (low + high);
      (pattern_bound_->least_devices(middle, devices_).devices > static_cast<double>(devices_) ? low : high) = middle;
    }
    return low;
  }

  double target() const { return best_ * (1 - limits_.gap); }

  /// Whole counts near the relaxation's that use all devices.
  std::vector<int64_t> rounded(const std::vector<double>& counts) const {
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

  /// In lexicographic order, among the first that may be listed; empty where there is none.
  std::vector<int64_t> first_that_holds_all() const {
    std::vector<int64_t> plan;
    int64_t count = 0;
    for_each_plan(sizes_, devices_, [&](std::span<const int64_t> replicas) {
      if (plan_bound(replicas) < infinity) plan.assign(replicas.begin(), replicas.end());
      return plan.empty() && ++count < limits_.plans;
    });
    return plan;
  }

  /// Bounds the plan and dispatches it where the bound leaves room below the best one; true when it is the best now.
  bool look(const std::vector<int64_t>& plan) {
    if (!looked_.insert(plan).second) return false;
    if (is_by_row()) {
      const RowDispatch rows = dispatch_rows(costs_, plan, sequences_);
      if (rows.empty()) return false;
      considered_.push_back({plan, 0, rows.makespan});
      const bool is_better = rows.makespan < best_;
      best_ = std::min(best_, rows.makespan);
      return is_better;
    }
    if (!cover_bound_->deploy(costs_, plan)) return false;
    if (best_ < infinity && improve_weights(*cover_bound_, 6, target()).bound >= target()) return false;
    DispatchLimits quick{.gap = limits_.gap, .nodes = 0, .rounds = 40};
    if (best_ < infinity) quick.cutoff = target();
    const Dispatch dispatch = dispatch_balanced(costs_, plan, sequences_, quick);
    if (dispatch.lower_bound >= target() && dispatch.makespan >= best_) return false;
    considered_.push_back({plan, dispatch.lower_bound, dispatch.makespan});
    if (dispatch.makespan >= best_) return false;
    best_ = dispatch.makespan;
    return true;
  }

  /// Exchanges replicas of one configuration for as many devices of another while the plan gets better.
  void improve(std::vector<int64_t> plan) {
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

  /// Seconds that no plan outside considered_ ends before. `low`: what is known already.
  double prove(double low) {
    for (int attempt = 0; attempt < 8 && low < target(); ++attempt) {
      const double before = best_;
      cuts_ = pattern_bound_->least_devices(target(), devices_);
      if (cuts_.devices > static_cast<double>(devices_)) return target();
      steps_ = 0;
      std::vector<int64_t> plan(width(), 0);
      prepare_cuts();
      std::vector<double> have(cuts_.cuts.size(), 0);
      result_.open = 0;
      if (walk(0, devices_, plan, have)) return target();
      if (best_ >= before * (1 - 0.002)) break;
    }
    if (low >= target()) return low;
    result_.open = 1;  // too many are left
    return raised(low);
  }

  /// per_device_[cut][i]: the most that a device of configurations i and later adds to a cut.
  void prepare_cuts() {
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

  /// Depth-first over the counts that the cuts allow. False when it was given up.
  bool walk(size_t i, int64_t left, std::vector<int64_t>& plan, std::vector<double>& have) {
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

  std::span<const BucketCosts> costs_;
  std::span<const int64_t> sequences_;
  const DeploymentLimits& limits_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> plans_;                     ///< one after another
  std::vector<std::pair<double, size_t>> bounds_;  ///< (bound, place in plans_)
  Deployment result_;

  int64_t devices_ = 0;
  double best_ = infinity;                  ///< makespan of the best plan so far
  std::vector<ConsideredPlan> considered_;  ///< dispatched
  std::set<std::vector<int64_t>> looked_;
  std::optional<PatternBound> pattern_bound_;
  std::optional<CoverBound> cover_bound_;
  DeviceBound cuts_;
  std::vector<std::vector<double>> per_device_;
  int64_t steps_ = 0;
};

}  // namespace

void for_each_plan(std::span<const int64_t> sizes, int64_t total,
                   const std::function<bool(std::span<const int64_t>)>& visit) {
  if (sizes.empty()) return;
  std::vector<int64_t> plan(sizes.size(), 0);
  visit_plans(sizes, 0, total, plan, visit);
}

Deployment plan_deployment(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, int64_t devices,
                           const DeploymentLimits& limits) {
  COTUNE_CHECK(costs.size() < 24, "{} configurations are too many to enumerate", costs.size());
  return DeploymentSearch(costs, sequences, limits).run(devices);
}

}  // namespace cotune
