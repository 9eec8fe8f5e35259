#include "plan/alternatives.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/error.h"
#include "plan/replica_planner.h"

namespace cotune {
namespace {

constexpr double as_fast = 1.001;  // of steps that differ by less, other things decide

bool can_be_chosen(const Alternative& each) { return each.fits() && !is_sequential(each.deployment); }

/// gpipe and 1f1b keep what they keep in every round, so that fewer jobs come in beside each other.
bool is_fixed(PipelineOrder order) { return order == PipelineOrder::gpipe || order == PipelineOrder::one_f_one_b; }

/// Of two that are as fast: `hybrid`, then an order that follows the jobs that come and go, then memory decides.
bool is_preferred(const Alternative& a, const Alternative& b) {
  const bool a_is_hybrid = a.sharing == Sharing::hybrid, b_is_hybrid = b.sharing == Sharing::hybrid;
  if (a_is_hybrid != b_is_hybrid) return a_is_hybrid;
  if (is_fixed(a.order) != is_fixed(b.order)) return is_fixed(b.order);
  return a.predicted.fullest_bytes < b.predicted.fullest_bytes;
}

/// Why an alternative that fits is not the best one. `best`: nullptr where nothing is chosen.
std::string reason_against(const Alternative& each, const Alternative* best) {
  if (best == nullptr) return "runs jobs one after the other";
  const double ratio = each.predicted.seconds / best->predicted.seconds;
  if (ratio > as_fast) return fmt::format("{:.1f}% slower", 100 * (ratio - 1));
  if (is_sequential(each.deployment) && each.plans.size() > 1) {
    return ratio < 1 / as_fast ? fmt::format("{:.1f}% faster, but runs jobs one after the other", 100 * (1 - ratio))
                               : "as fast, but runs jobs one after the other";
  }
  return each.predicted.fullest_bytes > best->predicted.fullest_bytes ? "as fast, with more memory"
                                                                      : "as fast";
}

/// Whether these are the plan's replicas, in whatever order.
bool has_replicas(const Plan& plan, const std::string& replicas) {
  const auto parts = [](const std::string& text) {
    std::multiset<std::string> all;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find(", ", begin), text.size());
      all.insert(text.substr(begin, end - begin));
      begin = end + 2;
    }
    return all;
  };
  // Between the degrees of a configuration stands a comma without a space.
  return parts(replicas_text(plan)) == parts(replicas);
}

/// Of one job's alternatives the one for a sum of that policy and order. An order for few microbatches is there only where it suits the job, and
/// taken only where it is faster than the default one.
const Alternative& in_turn(const std::vector<Alternative>& own, Sharing sharing, PipelineOrder order) {
  const Alternative* found = nullptr;
  for (const Alternative& each : own) {
    if (each.sharing != sharing || (each.order != order && (!is_for_few(order) || each.order != PipelineOrder::automatic))) continue;
    if (found == nullptr || (each.fits() && (!found->fits() || each.predicted.seconds < found->predicted.seconds))) found = &each;
  }
  return found != nullptr ? *found : own.front();
}

/// Sums over jobs of what their alternatives of one order say.
class TurnSum {
 public:
  explicit TurnSum(const Alternative& kind) {
    sum_ = {.nodes = kind.nodes, .deployment = kind.deployment, .sharing = kind.sharing, .order = kind.order, .recompute = kind.recompute};
  }

  void add(const Alternative& own, const std::string& name) {
    const PredictedStep& step = own.predicted;
    if (!own.fits() && (sum_.fits() || own.overflow.bytes > sum_.overflow.bytes)) {
      sum_.constraint = fmt::format("{}: {}", name, own.constraint);
      sum_.overflow = own.overflow;
    }
    sum_.is_bound = sum_.is_bound || own.is_bound;
    has_price_ = has_price_ && step.seconds > 0;
    sum_.plans.insert(sum_.plans.end(), own.plans.begin(), own.plans.end());
    PredictedStep& sum = sum_.predicted;
    sum.seconds += step.seconds;
    sum.exchange_s += step.exchange_s;
    sum.tokens += step.tokens;
    sum.processed_tokens += step.processed_tokens;
    sum.device_seconds += step.device_seconds;
    sum.fullest_bytes = std::max(sum.fullest_bytes, step.fullest_bytes);
    sum.cost += step.cost;
    const double own_busy = (1 - step.idle) * step.device_seconds;
    busy_ += own_busy;
    computing_ += step.bubble < 1 ? own_busy / (1 - step.bubble) : 0;
  }

  Alternative take(int64_t devices) {
    PredictedStep& sum = sum_.predicted;
    if (!has_price_) {
      sum = {
          .tokens = sum.tokens, .processed_tokens = sum.processed_tokens, .fullest_bytes = sum.fullest_bytes};
    } else if (sum.seconds > 0) {
      sum.idle = std::max(0.0, 1 - busy_ / (sum.seconds * static_cast<double>(devices)));
      sum.bubble = computing_ > 0 ? std::max(0.0, 1 - busy_ / computing_) : 0;
    }
    return std::move(sum_);
  }

 private:
  Alternative sum_;
  double busy_ = 0, computing_ = 0;  // device seconds
  bool has_price_ = true;
};

}  // namespace

std::vector<Alternative> sums_in_turn(const std::vector<std::vector<Alternative>>& of_jobs,
                                      const std::vector<std::string>& names, int64_t devices) {
  COTUNE_CHECK(!of_jobs.empty() && of_jobs.size() == names.size());
  std::vector<const Alternative*> kinds;  // one of every policy and order that some job has
  for (const std::vector<Alternative>& own : of_jobs) {
    COTUNE_CHECK(!own.empty());
    for (const Alternative& each : own) {
      const auto is_alike = [&](const Alternative* other) { return other->sharing == each.sharing && other->order == each.order; };
      if (std::ranges::none_of(kinds, is_alike)) kinds.push_back(&each);
    }
  }
  std::vector<Alternative> sums;
  for (const Alternative* kind : kinds) {
    TurnSum sum(*kind);
    for (size_t job = 0; job < of_jobs.size(); ++job) sum.add(in_turn(of_jobs[job], kind->sharing, kind->order), names[job]);
    sums.push_back(sum.take(devices));
  }
  return sums;
}

bool is_sequential(System system) {
  return system == System::task_sequential || system == System::lobra_sequential;
}

std::optional<size_t> choose(std::vector<Alternative>& alternatives) {
  double shortest = std::numeric_limits<double>::infinity();
  for (const Alternative& each : alternatives) {
    if (can_be_chosen(each)) shortest = std::min(shortest, each.predicted.seconds);
  }
  std::optional<size_t> chosen;
  for (size_t a = 0; a < alternatives.size(); ++a) {
    const Alternative& each = alternatives[a];
    if (!can_be_chosen(each) || each.predicted.seconds > as_fast * shortest) continue;
    if (!chosen || is_preferred(each, alternatives[*chosen])) chosen = a;
  }
  for (size_t a = 0; a < alternatives.size(); ++a) {
    Alternative& each = alternatives[a];
    if (!each.fits()) {
      each.rejected_for = each.constraint;
    } else {
      each.rejected_for = chosen == a ? "" : reason_against(each, chosen ? &alternatives[*chosen] : nullptr);
    }
  }
  return chosen;
}

void judge(std::vector<ConsideredDeployment>& deployments, const Alternative* chosen) {
  for (ConsideredDeployment& each : deployments) {
    if (!each.constraint.empty()) each.rejected_for = each.constraint;
    if (each.simulated_s == 0 || chosen == nullptr) continue;
    const bool is_chosen = each.nodes == chosen->nodes && each.system == chosen->deployment && each.recompute == chosen->recompute &&
                           has_replicas(chosen->plans.front(), each.replicas);
    const double ratio = each.simulated_s / chosen->predicted.seconds;
    each.rejected_for = is_chosen ? "" : ratio > as_fast ? fmt::format("{:.1f}% slower", 100 * (ratio - 1)) : "as fast";
  }
}

}  // namespace cotune
