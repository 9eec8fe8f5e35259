#include "plan/deployment/replan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace cotune {
namespace {

/// Seconds of a step on given replicas; 0 where they cannot hold it.
double step_seconds(std::span<const BucketCosts> costs, std::span<const int64_t> replicas, std::span<const int64_t> sequences,
                    const DeploymentLimits& limits) {
  if (limits.dealing == Dealing::by_row) return dispatch_rows(costs, replicas, sequences).makespan;
  size_t longest = 0, reach = 0;
  for (size_t j = 0; j < sequences.size(); ++j) {
    if (sequences[j] > 0) longest = j + 1;
  }
  for (size_t i = 0; i < costs.size(); ++i) {
    if (replicas[i] > 0) reach = std::max(reach, costs[i].reach());
  }
  return reach < longest || reach == 0 ? 0 : dispatch_balanced(costs, replicas, sequences, limits.dispatch).makespan;
}

bool is_nothing(std::span<const int64_t> counts) {
  return std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count == 0; });
}

}  // namespace

Move move_between(std::span<const Configuration> configurations, std::span<const int64_t> before,
                  std::span<const int64_t> after, const MoveCosts& costs) {
  COTUNE_CHECK(before.size() == configurations.size() && after.size() == configurations.size());
  Move move;
  const int64_t state = costs.adapter_bytes + costs.optimizer_bytes;
  bool has_change = false;
  int64_t added = 0;
  for (size_t i = 0; i < configurations.size(); ++i) {
    if (before[i] == 0 && after[i] == 0) continue;
    const int64_t kept = std::min(before[i], after[i]);
    move.changes.push_back({i, kept, before[i] - kept, after[i] - kept});
    has_change = has_change || before[i] != after[i];
    added += after[i] - kept;
  }
  if (!has_change) return move;
  move.weight_bytes = added * costs.weight_bytes;
  move.state_bytes = (1 + added) * state;
  const double state_seconds = static_cast<double>(state) / costs.checkpoint_bandwidth;
  move.seconds = costs.restart_seconds + state_seconds;
  if (added > 0) move.seconds += static_cast<double>(costs.weight_bytes) / costs.load_bandwidth + state_seconds;
  return move;
}

MoveChoice choose_move(double kept_seconds, double best_seconds, double remaining_steps, double move_seconds, double margin) {
  MoveChoice choice{.gain = std::max(0.0, kept_seconds - best_seconds) * remaining_steps};
  choice.pays = choice.gain > move_seconds * (1 + margin);
  choice.reason = fmt::format("a step takes {:.3g} s here and {:.3g} s on the best replicas: {:.3g} s over {:.3g} steps against {:.3g} s of moving",
                              kept_seconds, best_seconds, choice.gain, remaining_steps, move_seconds);
  return choice;
}

Replan replan(std::span<const Configuration> configurations, std::span<const BucketCosts> costs,
              std::span<const int64_t> sequences, int64_t devices, std::span<const int64_t> running, double remaining_steps,
              const MoveCosts& move_costs, double margin, const DeploymentLimits& limits) {
  const Deployment best = is_nothing(sequences) ? Deployment{} : plan_deployment(costs, sequences, devices, limits);
  return replan(configurations, costs, sequences, devices, best, running, remaining_steps, move_costs, margin, limits);
}

Replan replan(std::span<const Configuration> configurations, std::span<const BucketCosts> costs,
              std::span<const int64_t> sequences, int64_t devices, const Deployment& best, std::span<const int64_t> running,
              double remaining_steps, const MoveCosts& move_costs, double margin, const DeploymentLimits& limits) {
  COTUNE_CHECK(running.size() == costs.size() && remaining_steps >= 0 && margin >= 0);
  Replan result;
  if (is_nothing(sequences)) {
    result.decision = ReplanDecision::stop;
    result.reason = "no sequences are left";
    return result;
  }
  if (best.empty()) {
    result.decision = ReplanDecision::stop;
    result.reason = fmt::format("no configuration of at most {} devices holds the longest sequences", devices);
    return result;
  }
  result.replicas = best.replicas;
  result.best_seconds = best.dispatch.makespan;
  result.kept_seconds = is_nothing(running) ? 0 : step_seconds(costs, running, sequences, limits);
  result.move = move_between(configurations, running, best.replicas, move_costs);
  if (result.kept_seconds <= 0) {
    result.decision = ReplanDecision::must_move;
    result.reason = is_nothing(running) ? "nothing runs yet" : "no replica that runs holds the longest sequences";
    return result;
  }
  if (result.move.seconds <= 0) {
    result.reason = "the replicas that run are the best ones";
    return result;
  }
  MoveChoice choice = choose_move(result.kept_seconds, result.best_seconds, remaining_steps, result.move.seconds, margin);
  result.gain = choice.gain;
  result.decision = choice.pays ? ReplanDecision::move : ReplanDecision::keep;
  if (!choice.pays) result.replicas.assign(running.begin(), running.end());
  result.reason = std::move(choice.reason);
  return result;
}

}  // namespace cotune
