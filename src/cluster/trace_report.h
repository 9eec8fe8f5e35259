/// What came of a simulated trace, in numbers: tables for people, CSV and JSON for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cluster/simulate_trace.h"

namespace cotune {

/// Of a set of values; all 0 where there are none. A quantile is the least value that so many are at most.
struct Spread {
  double mean = 0, median = 0, p95 = 0, p99 = 0;
  bool operator==(const Spread&) const = default;
};
Spread spread_of(std::vector<double> values);

/// (Σx)² / (n·Σx²): 1 where all are equal, 1/n where one has everything (Jain et al. 1984). 1 for none.
double jain_index(std::span<const double> values);

/// What one tenant got.
struct TenantSummary {
  std::string name;
  int64_t jobs = 0, finished = 0;
  double completion_mean_min = 0;  ///< of finished jobs
  double slowdown = 0;   ///< mean over finished jobs: time from arrival to end over the time that its steps take alone
  double waiting_mean_min = 0;
  int64_t deadlines = 0, missed = 0;
  double instance_hours = 0;       ///< TraceSimulation::tenant_service_s
  bool operator==(const TenantSummary&) const = default;
};

struct TraceSummary {
  std::string policy;
  std::string sharing;            ///< with its layout
  std::string rates;              ///< RoundRates::describe, when all was over
  int64_t instances = 0, devices = 0;
  int64_t jobs = 0, finished = 0, refused = 0;
  std::map<std::string, int64_t> refusals;  ///< jobs by why they were refused
  double end_min = 0;             ///< when the last job ended
  double window_min = 0;
  double tokens_per_s = 0;        ///< trained in the window
  double utilisation = 0;         ///< share of the instances' time in the window with a job
  double jobs_per_instance = 0;   ///< on busy instances in the window, mean over time
  Spread completion_min;          ///< from arrival to end, of finished jobs
  Spread waiting_min;             ///< of it: on no instance
  double fairness = 1;            ///< Jain's index over tenants; of each the mean over its jobs of the time that its steps
                                  ///< take alone over the time from arrival to end
  int64_t deadlines = 0, missed = 0;  ///< jobs with one; those that ended later or were refused
  int64_t preemptions = 0;
  double lost_share = 0;          ///< of the time of jobs on instances: lost in pre-emptions, at a job's mean pace, or spent on restarts
  std::vector<TenantSummary> tenants;  ///< as in the trace; those without jobs are left out
  double highest_memory = 0;      ///< share of the fullest stage's limit, at any moment
  bool operator==(const TraceSummary&) const = default;
};

/// policy, sharing, rates and devices are left to the caller.
TraceSummary summarise(const Trace& trace, const TraceSimulation& simulation, const std::vector<double>& dedicated_round_s,
                       int64_t instances);

/// One block of lines for one, a table with a line each for several: then throughput and mean completion also as ratios to
/// the first one.
std::string to_text(std::span<const TraceSummary> summaries);
/// A line per summary, below one that names the columns; likewise a line per job.
std::string to_csv(std::span<const TraceSummary> summaries);
std::string jobs_csv(const Trace& trace, const TraceSimulation& simulation);
nlohmann::json to_json(const TraceSummary& summary);

}  // namespace cotune
