/// What a run says of its hybrid tasks: which jobs share microbatches from now on, what a round is predicted to take,
/// and why not otherwise. Plain values with names, which outlive the jobs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace cotune {

/// One way to group the resident jobs.
struct JobGrouping {
  std::string name;                             ///< RoundTasks::name, or `of FILE` where a plan is followed
  std::vector<std::vector<std::string>> tasks;  ///< names of the jobs of each hybrid task
  double seconds = 0;                           ///< predicted, of a round
  int64_t microbatches = 0;                     ///< of a round, and its tokens with pads
  int64_t tokens = 0;
  bool operator==(const JobGrouping&) const = default;
};

struct PlannedRound {
  std::string cause;  ///< `start`, or what changed: "`b` joins", "`a` finished", "token budget 512"
  int64_t round = 0;  ///< training rounds that the run had made
  int64_t token_budget = 0;
  bool recompute = false;
  std::vector<JobGrouping> alternatives;  ///< the taken one among them
  size_t chosen = 0;
  std::string reason;
  std::string costs;  ///< what the seconds come from: a profile, or the roofline of a preset
  const JobGrouping& taken() const { return alternatives[chosen]; }
  bool operator==(const PlannedRound&) const = default;
};

/// {"cause", "round", "jobs" (how many), "choice" (its name), "hybrid_tasks": [[name, …], …], "seconds", "microbatches", "tokens",
///  "token_budget", "recompute", "reason", "costs",
///  "alternatives": [{"name", "hybrid_tasks", "seconds", "microbatches", "tokens"}, …]}; the alternatives are those that were not taken.
nlohmann::ordered_json to_json(const PlannedRound& plan);

}  // namespace cotune
