/// What to do when jobs arrive or leave: keep the replicas that run, or move to better ones, with the cost of moving counted
/// (LobRA §5.1; LB-19, LB-22).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "plan/deployment/configuration.h"
#include "plan/deployment/deployment.h"

namespace cotune {

/// What it takes to put a replica up.
struct MoveCosts {
  int64_t weight_bytes = 0;          ///< of the frozen model, once per copy; a sharded group of copies has one
  int64_t adapter_bytes = 0;         ///< of all jobs: values, f32
  int64_t optimizer_bytes = 0;       ///< of all jobs: moments, f32
  double load_bandwidth = 2e9;       ///< bytes per second at which one replica's weights come from disk or a neighbour; replicas
                                     ///< load at the same time
  double checkpoint_bandwidth = 1e9; ///< bytes per second of saving, and again of reading, adapters and moments
  double restart_seconds = 10;       ///< to tear down and start processes, connect ranks, and warm up
};

/// Replicas of one configuration that stay, go or come.
struct ReplicaChange {
  size_t configuration = 0;
  int64_t kept = 0, removed = 0, added = 0;
  bool operator==(const ReplicaChange&) const = default;
};

struct Move {
  std::vector<ReplicaChange> changes;  ///< of configurations that are in either plan
  int64_t weight_bytes = 0;            ///< loaded, over all added replicas
  int64_t state_bytes = 0;             ///< adapters and moments, written once and read by every added replica
  double seconds = 0;                  ///< without training
  bool operator==(const Move&) const = default;
};

/// Configurations are compared by their place. Replicas of the same configuration are kept where they are: weights stay, and
/// every replica has all adapters already, so only added ones load and read:
///   seconds = 0 for equal plans, else restart + state/checkpoint_bandwidth (save) + max over added replicas of
///             (its weights/load_bandwidth + state/checkpoint_bandwidth)
Move move_between(std::span<const Configuration> configurations, std::span<const int64_t> before,
                  std::span<const int64_t> after, const MoveCosts& costs);

enum class ReplanDecision {
  keep,      ///< the best plan is the one that runs, or moving does not pay
  move,      ///< it pays
  must_move, ///< what runs cannot hold the longest bucket
  stop,      ///< no sequences are left, or nothing can hold them
};

struct Replan {
  ReplanDecision decision = ReplanDecision::keep;
  std::vector<int64_t> replicas;  ///< to run from now on; empty: none
  double kept_seconds = 0;        ///< of a step of the new jobs on the replicas that run; 0: they cannot hold them
  double best_seconds = 0;        ///< on the best plan
  double gain = 0;                ///< seconds that moving saves over the rest of the jobs, before its cost
  Move move;                      ///< to the best plan
  std::string reason;             ///< in words, with the numbers
};

/// Whether moving from what runs to what is best pays, by seconds of a step on either.
struct MoveChoice {
  bool pays = false;   ///< gain > move_seconds·(1 + margin)
  double gain = 0;     ///< (kept − best)·remaining_steps, at least 0
  std::string reason;  ///< in words, with the numbers
};
MoveChoice choose_move(double kept_seconds, double best_seconds, double remaining_steps, double move_seconds, double margin);

/// `sequences`: of the expected step of the jobs there are now; `remaining_steps`: how many such steps are expected until the
/// jobs change again or end. Moves where (kept − best)·remaining_steps > move.seconds·(1 + margin). Several arrivals
/// and exits at once are one call. Pure.
Replan replan(std::span<const Configuration> configurations, std::span<const BucketCosts> costs,
              std::span<const int64_t> sequences, int64_t devices, std::span<const int64_t> running, double remaining_steps,
              const MoveCosts& move_costs, double margin = 0, const DeploymentLimits& limits = {});

/// The same where `best`, plan_deployment of these sequences on these devices, is known: it does not depend on what runs.
Replan replan(std::span<const Configuration> configurations, std::span<const BucketCosts> costs,
              std::span<const int64_t> sequences, int64_t devices, const Deployment& best, std::span<const int64_t> running,
              double remaining_steps, const MoveCosts& move_costs, double margin = 0, const DeploymentLimits& limits = {});

}  // namespace cotune
