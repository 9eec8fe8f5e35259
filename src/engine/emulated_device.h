/// A device that is not there: what stands in for it when a run is emulated. The run's plans, messages and collectives are real;
/// operators and optimizer steps take their predicted time and compute nothing.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "schedule/operators.h"
#include "base/steady_seconds.h"
#include "schedule/pipeline/pipeline_cluster.h"
#include "schedule/stage/overlap.h"

namespace cotune {

/// Returns at that moment or as soon after it as the system lets the thread run; at once where it has passed. The thread waits
/// without using a core.
void sleep_until_steady(double steady_s);

/// How fast it is. All functions may be called by several threads at once.
struct EmulatedDevice {
  std::string name;
  /// One call of an operator on one of the ranks that divide its stage, without the all-reduce that may follow.
  std::function<double(const StageShape& stage, const Operator& op, const MicrobatchCounts& counts)> operator_seconds;
  /// An optimizer step of so many trained values.
  std::function<double(int64_t values, int64_t moment_count)> optimizer_seconds;
  /// Among the ranks that divide layers.
  std::function<double(int64_t bytes, int64_t ranks)> all_reduce_seconds;
  Link link;           ///< from a rank to its neighbour in the pipeline
  Link exchange_link;  ///< of a rank to those of other replicas
  StreamRates rates;   ///< of all-reduces beside computation

  // The outside world. A test whose clock stands still sees times that follow from the device alone.
  std::function<double()> now_s = steady_seconds;
  std::function<void(double)> sleep_until_s = sleep_until_steady;
};

/// When the device of one rank is busy. Like a GPU with its queue it goes on while the host prepares what comes next: work begins
/// where the work before it ended, or when the message has come that it waits for, and what the host takes beside is hidden
/// unless it takes longer. One thread.
class EmulatedClock {
 public:
  explicit EmulatedClock(const EmulatedDevice& device) : device_(device), streams_(device.rates) {}

  /// The device has nothing to do from now on.
  void begin() { streams_.begin(device_.now_s()); }
  /// When it has computed all that it was given.
  double free_s() const { return streams_.compute_free_s(); }
  void compute(double seconds) { streams_.compute(free_s(), seconds); }
  /// Beside what it computes from now on, after what it communicates already. Returns when that is through.
  double communicate(double seconds) { return streams_.communicate(free_s(), seconds).end_s; }
  /// It waits until then, if that is later. Returns for how long.
  double wait_until(double then_s);
  double wait_until_now() { return wait_until(device_.now_s()); }
  /// The host waits for the device.
  void settle() const { device_.sleep_until_s(free_s()); }
  const EmulatedDevice& device() const { return device_; }

 private:
  const EmulatedDevice& device_;
  DeviceStreams streams_;
};

}  // namespace cotune
