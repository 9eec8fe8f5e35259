/// Runs a trace of jobs on one deployment of a cluster that is planned anew whenever jobs arrive or leave, with the cost of moving counted
/// (LobRA §5.1; LB-19, LB-22).
///
/// All live jobs share all replicas, one optimizer step of each a round, as `lobra` deploys them. At every arrival and exit the planner is
/// asked (plan/deployment/replan.h): keep the replicas that run, or move to the best ones for the jobs there are now. While replicas
/// move nothing trains.
#pragma once

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/trace.h"
#include "jobs/enum_names.h"
#include "model/config/model_config.h"
#include "plan/deployment/replan.h"
#include "plan/shapes/cluster.h"

namespace cotune {

enum class MoveRule {
  when_forced,  ///< only where the replicas that run cannot hold the jobs
  when_it_pays, ///< where moving saves more until the next job is through than it takes
  always,       ///< whenever there are better replicas
};
template <>
inline constexpr std::array<std::string_view, 3> enum_names<MoveRule>{"when forced", "when it pays", "always"};
template <>
inline constexpr std::array<std::string_view, 4> enum_names<ReplanDecision>{"keep", "move", "must move", "stop"};

struct ReplanSettings {
  MoveRule rule = MoveRule::when_it_pays;
  std::string dtype = "bfloat16";
  MoveCosts costs;  ///< bandwidths and restart; bytes are those of model and jobs
  int64_t length_buckets = 16;
};

/// What was decided when jobs had come or gone.
struct ReplanEvent {
  double time_s = 0;
  int64_t jobs = 0;  ///< that train from now on
  int64_t waiting = 0;
  ReplanDecision decision = ReplanDecision::keep;
  std::string replicas;  ///< that run from now on: `<4,1>×2, <8,1>×1`
  double kept_s = 0, best_s = 0;  ///< of a step: on the replicas that ran, 0 where they cannot hold the jobs, and on the best
  double gain_s = 0;      ///< until the next job is through
  double move_s = 0;      ///< of the move to the best ones, whether it was made or not
  int64_t weight_bytes = 0;  ///< that it loads
  bool operator==(const ReplanEvent&) const = default;

  bool moves() const { return decision == ReplanDecision::move || decision == ReplanDecision::must_move; }
};

struct ReplannedJob {
  double started_s = std::numeric_limits<double>::infinity();
  double finished_s = std::numeric_limits<double>::infinity();  ///< infinite: refused, for no replica holds it
  int64_t steps = 0;  ///< 0: refused
  bool operator==(const ReplannedJob&) const = default;
};

struct ReplannedTrace {
  MoveRule rule = MoveRule::when_it_pays;
  std::vector<ReplanEvent> events;
  std::vector<ReplannedJob> jobs;  ///< as in the trace
  double end_s = 0;                ///< of the last job
  double moving_s = 0;             ///< nothing trained since replicas moved
  int64_t moves = 0, forced = 0;   ///< forced among them; putting the first replicas up is one
  int64_t weight_bytes = 0;        ///< loaded
  double tokens = 0;               ///< trained
  bool operator==(const ReplannedTrace&) const = default;

  int64_t finished() const;
  double mean_completion_s(const Trace& trace) const;  ///< from arrival to end, of finished jobs; 0 for none
};

/// Jobs start in the order of their arrival, as soon as some configuration holds the rows of all live ones beside their adapters. Makes
/// planned_steps(job, dedicated_round_s[kind]) steps, fewer where it stops early. `group`: of the cluster; replicas stand on its nodes.
/// Priorities, deadlines and `dedicated` are not read. Pure. Throws UserError where a job has no dedicated time (infinite) and yet a place on the
/// cluster.
ReplannedTrace replan_trace(const Trace& trace, const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
                            std::span<const double> dedicated_round_s, const ReplanSettings& settings);

/// The same under several rules, each in place of that of the settings: what the planner finds for jobs is found once for all of them.
std::vector<ReplannedTrace> replan_trace(const Trace& trace, const ModelConfig& model, const ClusterSpec& cluster, const NodeGroup& group,
                                         std::span<const double> dedicated_round_s, const ReplanSettings& settings,
                                         std::span<const MoveRule> rules);

/// A line per rule, and below the moves of the last one.
std::string to_text(std::span<const ReplannedTrace> results, const Trace& trace);
std::string to_csv(std::span<const ReplannedTrace> results, const Trace& trace);
/// A line per rule and job.
std::string jobs_csv(std::span<const ReplannedTrace> results, const Trace& trace);
nlohmann::ordered_json to_json(const ReplannedTrace& result, const Trace& trace);

}  // namespace cotune
