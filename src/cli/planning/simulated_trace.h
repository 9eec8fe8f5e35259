/// `cotune simulate TRACE` and `--philly`: a trace of jobs on the instances of a cluster.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cotune {

struct TraceArguments {
  std::string trace_file, cluster_file, model, dtype;  ///< trace_file "": Philly-like arrivals
  int64_t tensor_parallel = 1, pipeline_stages = 4;
  uint64_t seed = 1;
  double days = 7;
  int64_t microbatches = 4, most_jobs = 0;
  std::vector<std::string> policies, sharings;
  bool compare = false, json = false, refuse_late = false;
  bool replan = false;  ///< one deployment for all jobs (cluster/replanned_trace.h) in place of instances
  std::optional<int64_t> dedicate_priority;
  std::optional<double> restart_s;  ///< none: 0 of a job, MoveCosts::restart_seconds of replicas
  double window_min = 0;
  std::string rates = "planner", save_rates, save_trace, csv, jobs_csv, svg;
};

/// Prints the tables, and writes what is asked for. Throws UserError, also for options that would have no effect.
void simulate_trace_command(const TraceArguments& arguments);

}  // namespace cotune
