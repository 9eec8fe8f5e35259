/// Simulation of a launch order on a compute and a communication stream.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "schedule/stage/subgraphs.h"

namespace cotune {

/// A subgraph of one of several DAGs.
struct Launch {
  int32_t task = 0;
  int32_t subgraph = 0;
  bool operator==(const Launch&) const = default;
};

/// One launch that comes before another one, of another task: jobs that both tasks have add their gradients in that order.
struct LaunchEdge {
  Launch before, after;
  bool operator==(const LaunchEdge&) const = default;
};

/// How the two streams share a device. With NVLink SHARP 8 thread blocks carry the full bandwidth (MuxTune
/// §3.4.3): a small share. Elsewhere a larger share slows computing, a smaller one communication.
struct StreamRates {
  bool overlap = true;  ///< false: nothing computes while something communicates
  double communication_share =
      0;  ///< of the compute rate, from 0 to below 1, lost while something communicates
  double communication_rate = 1;  ///< communication takes its seconds divided by this; above 0
  bool operator==(const StreamRates&) const = default;
};

/// The two streams of a device, each of which does one thing after the other. Times may be given in any unit and from any origin.
class DeviceStreams {
 public:
  explicit DeviceStreams(const StreamRates& rates = {}) : rates_(rates) {}

  struct Span {
    double start_s = 0;
    double end_s = 0;
  };
  /// As soon as its stream is free, but not before `earliest_s`. Of communication that is queued later nothing is known: queue first
  /// what comes of earlier computing.
  Span compute(double earliest_s, double seconds);
  Span communicate(double earliest_s, double seconds);

  double compute_free_s() const { return compute_free_s_; }
  double communication_free_s() const { return communication_free_s_; }
  /// The one that computes does nothing before that moment.
  void wait_until(double then_s);
  /// Both have nothing to do until then.
  void begin(double now_s);

 private:
  StreamRates rates_;
  double compute_free_s_ = 0;
  double communication_free_s_ = 0;
  std::vector<std::pair<double, double>> communications_;  ///< queued so far, ascending
  size_t beside_ = 0;                                      ///< the first that may still be under way
};

struct StageOverlap {
  double makespan_s = 0;
  double compute_busy_s = 0;
  /// Time in which something is under way and nothing computes.
  double exposed_s() const { return makespan_s - compute_busy_s; }
};

/// Each stream runs in order: compute in launch order, communication in the order of the computes. A subgraph
/// starts when the compute stream is free and all its predecessors have computed and, but for an adapter gradient, communicated. Throws
/// InternalError when the order is not a launch order (check_order).
StageOverlap simulate_launches(std::span<const SubgraphDag> dags, std::span<const Launch> order,
                               const StreamRates& rates = {}, std::span<const LaunchEdge> edges = {});

/// Throws InternalError unless the order has all subgraphs, each once and after its predecessors and what `edges` say.
void check_order(std::span<const SubgraphDag> dags, std::span<const Launch> order, std::span<const LaunchEdge> edges = {});

}  // namespace cotune
