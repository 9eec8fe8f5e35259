#include "plan/deployment/deployment.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "base/error.h"
#include "base/never.h"
#include "plan/deployment/dispatch_bound.h"
#include "plan/deployment/plan_search.h"
#include "plan/deployment/replica_counts.h"

namespace cotune {
namespace {

class DeploymentSearch {
 public:
  DeploymentSearch(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, const DeploymentLimits& limits)
      : costs_(costs), sequences_(sequences), limits_(limits) {
    for (const BucketCosts& each : costs) sizes_.push_back(each.devices);
  }

  Deployment run(int64_t devices) {
    Deployment best;
    if (sizes_.empty()) return best;
    // A plan that leaves room for a further replica is no better than with it.
    const int64_t smallest = *std::min_element(sizes_.begin(), sizes_.end());
    for (int64_t total = devices; total > 0 && total > devices - smallest; --total) {
      run_on_exactly(total);
      if (result_.enumerated > 0) best = best.enumerated > 0 ? better_of(std::move(best), std::move(result_)) : std::move(result_);
    }
    return best;
  }

 private:
  void run_on_exactly(int64_t total) {
    result_ = {};
    plans_.clear();
    bounds_.clear();
    const int64_t count = count_plans(sizes_, total);
    if (count == 0) return;
    if (limits_.dealing == Dealing::by_row || (limits_.filter == PlanFilter::exact && count > limits_.enumerated)) {
      search(total, count);
      return;
    }
    enumerate(total);
    if (plans_.empty()) return;
    bound_plans();
    solve_plans();
  }

  /// Of plans for unlike numbers of devices: the one that ends first, with what is known of both.
  static Deployment better_of(Deployment a, Deployment b) {
    if (a.empty() || (!b.empty() && b.dispatch.makespan < a.dispatch.makespan)) std::swap(a, b);
    a.enumerated += b.enumerated;
    a.unable += b.unable;
    a.bounded += b.bounded;
    a.solved += b.solved;
    a.open += b.open;
    a.truncated = a.truncated || b.truncated;
    if (b.empty()) return a;
    a.lower_bound = std::min(a.lower_bound, b.lower_bound);
    a.runners_up.push_back({std::move(b.replicas), b.lower_bound, b.dispatch.makespan});
    std::move(b.runners_up.begin(), b.runners_up.end(), std::back_inserter(a.runners_up));
    std::stable_sort(a.runners_up.begin(), a.runners_up.end(), by_makespan);
    if (a.runners_up.size() > 10) a.runners_up.resize(10);
    return a;
  }

  static bool by_makespan(const ConsideredPlan& a, const ConsideredPlan& b) { return a.makespan < b.makespan; }

  size_t width() const { return costs_.size(); }
  std::span<const int64_t> plan(size_t index) const { return {plans_.data() + index * width(), width()}; }

  void enumerate(int64_t total) {
    std::map<uint64_t, double> by_support;
    for_each_plan(sizes_, total, [&](std::span<const int64_t> replicas) {
      if (result_.enumerated == limits_.plans) {
        result_.truncated = true;
        return false;
      }
      ++result_.enumerated;
      uint64_t support = 0;
      for (size_t i = 0; i < width(); ++i) support |= uint64_t{replicas[i] > 0} << i;
      const auto [known, is_new] = by_support.try_emplace(support);
      double& bound = known->second;
      if (is_new) bound = std::max(support_bound(costs_, sequences_, support, total), longest_alone(costs_, sequences_, support));
      if (bound == never) {
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
    double best = never, least_open = never;
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
    double best = never;
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

  void search(int64_t devices, int64_t count) {
    PlanSearch search(costs_, sequences_, limits_, devices);
    const double proven = search.run(count);
    result_.enumerated = count;
    if (proven == never) {
      result_.unable = count;
      return;
    }
    result_.solved = static_cast<int64_t>(search.considered().size());
    result_.open = search.open();
    result_.bounded = count - result_.solved - result_.open;
    if (limits_.dealing == Dealing::by_row) {
      finish_by_row(search.considered(), proven);
    } else {
      finish(search.considered(), proven);
    }
  }

  void finish_by_row(std::vector<ConsideredPlan>& considered, double proven) {
    std::stable_sort(considered.begin(), considered.end(), by_makespan);
    result_.lower_bound = proven;
    if (considered.empty()) return;
    result_.replicas = considered.front().replicas;
    result_.rows = dispatch_rows(costs_, result_.replicas, sequences_);
    result_.dispatch = totals_of(result_.rows, width(), sequences_.size());
    result_.dispatch.lower_bound = proven;
    considered.erase(considered.begin());
    if (considered.size() > 10) considered.resize(10);
    result_.runners_up = std::move(considered);
  }

  std::span<const BucketCosts> costs_;
  std::span<const int64_t> sequences_;
  const DeploymentLimits& limits_;
  std::vector<int64_t> sizes_;
  std::vector<int64_t> plans_;                     ///< one after another
  std::vector<std::pair<double, size_t>> bounds_;  ///< (bound, place in plans_)
  Deployment result_;
};

}  // namespace

Deployment plan_deployment(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, int64_t devices,
                           const DeploymentLimits& limits) {
  COTUNE_CHECK(costs.size() <= 64, "{} configurations are too many to tell which of them are deployed", costs.size());
  for (const BucketCosts& each : costs) COTUNE_CHECK(each.copies == 1 || limits.dealing == Dealing::by_row);
  return DeploymentSearch(costs, sequences, limits).run(devices);
}

}  // namespace cotune
