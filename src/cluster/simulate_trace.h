/// Runs a trace of jobs on a cluster of like instances, event by event (MX-42, MX-43, ML-22, ML-24).
///
/// An instance trains the jobs on it in rounds, one optimizer step of each a round; how long a round of a mix takes is what
/// RoundRates say. A job that joins or leaves changes the length of the rounds from that moment on. Jobs are fluid within a
/// step: the share of a step that is done counts, until the job is pushed out: then its finished steps are kept and the
/// unfinished one is lost.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "cluster/instance_memory.h"
#include "cluster/round_rates.h"
#include "cluster/scheduling_policy.h"
#include "cluster/trace.h"

namespace cotune {

struct TraceOptions {
  int64_t instances = 1;
  int64_t most_jobs = 0;   ///< on one instance; 0: as many as fit. 1: the sharing policy `separate`
  double restart_s = 0;    ///< that a job which was pushed out spends on its next instance before it goes on; it takes part in rounds, but
                           ///< trains nothing
  bool refuse_late = false;  ///< admission by deadlines: a job starts only where every predicted end, its own and its
                             ///< neighbours', keeps its deadline; what can keep it nowhere any more is refused. Jobs with a
                             ///< deadline are not pushed out
  double window_s = 0;     ///< throughput and utilisation are of [0, window]; 0: until the last arrival, or the end where all
                           ///< arrive at once
  int64_t samples = 400;   ///< points of the timeline, evenly spaced from 0 to the end
};

enum class TraceEventKind { arrive, start, preempt, finish, refuse };

/// What happened, in order.
struct TraceEvent {
  double time_s = 0;
  TraceEventKind kind = TraceEventKind::arrive;
  int64_t job = 0;
  int64_t instance = -1;  ///< of start, preempt and finish
  bool operator==(const TraceEvent&) const = default;
};

struct JobOutcome {
  int64_t steps = 0;          ///< it had to make; fewer than planned where it stops early
  double started_s = std::numeric_limits<double>::infinity();
  double finished_s = std::numeric_limits<double>::infinity();
  double ran_s = 0;           ///< on any instance
  double rounds = 0;          ///< that it trained in: steps + lost_steps
  double lost_steps = 0;      ///< shares of steps that were under way when it was pushed out
  double restarting_s = 0;
  int64_t preemptions = 0;
  std::string refusal;        ///< why it was refused; empty: it was not
  bool fits_nowhere = false;  ///< it was for memory: not even alone on an instance
  bool finished() const { return finished_s < std::numeric_limits<double>::infinity(); }
  bool operator==(const JobOutcome&) const = default;
};

struct ClusterSample {
  double time_s = 0;
  int64_t running_jobs = 0;
  int64_t waiting_jobs = 0;
  int64_t busy_instances = 0;
  bool operator==(const ClusterSample&) const = default;
};

struct TraceSimulation {
  std::vector<JobOutcome> jobs;     ///< as in the trace
  std::vector<TraceEvent> events;
  std::vector<ClusterSample> timeline;
  std::vector<double> tenant_service_s;  ///< seconds of instances, to the end
  double end_s = 0;                 ///< of the last event
  double window_s = 0;
  double window_tokens = 0;         ///< trained in the window, lost steps included
  double window_busy_s = 0;         ///< Σ over instances: seconds of the window with a job
  double window_running_s = 0;      ///< Σ over jobs: seconds of the window on an instance
  double highest_memory_share = 0;  ///< of a stage's limit, on any instance at any moment
  bool operator==(const TraceSimulation&) const = default;
};

/// Steps that a job makes when it does not stop early: its duration in rounds of its kind alone, at least one.
int64_t planned_steps(const TraceJob& job, double alone_round_s);
/// Those that it makes of `planned`: all, or its share where it stops early; at least one.
int64_t trained_steps(const TraceJob& job, int64_t planned);

/// Pure: equal inputs give equal simulations. `dedicated_round_s`: per kind, seconds of a step of a job alone on an instance,
/// which gives traced durations their meaning. Jobs that fit on no instance even alone are refused when they arrive.
TraceSimulation simulate_trace(const Trace& trace, SchedulingPolicy& policy, RoundRates& rates,
                               const InstanceMemory& memory, const std::vector<double>& dedicated_round_s,
                               const TraceOptions& options);

}  // namespace cotune
