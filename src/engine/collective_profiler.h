#pragma once

#include <barrier>
#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "schedule/profiled_collective.h"

namespace cotune {

/// Measures messages and collectives between ranks that are threads, by the calls that training makes (TensorGroup, Communicator), among
/// groups of one size that do the same at the same time and compute nothing beside. f32 values on the host.
///   message                                  half of a round trip between the two of a group
///   all_reduce, reduce_scatter, all_gather   until the group's last rank has it
/// each the mean over a few in a row; a time is the median over sweeps, for a machine's speed drifts, and over groups.
class CollectiveProfiler {
 public:
  /// ranks / group groups (measured_group_sizes); messages are measured in groups of two alone. sizes: in bytes, each rounded up to a value
  /// for every rank of the group. Throws SystemError where ranks cannot join.
  CollectiveProfiler(int64_t ranks, int64_t group, const std::vector<int64_t>& sizes);

  /// Every kind and size once. Called by a thread of each rank at the same time; ranks that are left over return at once. Where one throws
  /// (CommunicationEnded), none waits for it, and the profiler is of no use any more.
  void sweep(int64_t rank);

  /// Forgets what was measured: after a first sweep, which warms up.
  void forget();

  /// Of the sweeps so far, of which there is one at least: by kind and size.
  std::vector<ProfiledCollective> collectives() const;

 private:
  struct Case {
    CollectiveKind kind = CollectiveKind::message;
    int64_t values = 0;
  };

  double measure(const Case& each, Communicator& communicator) const;

  int64_t group_ = 2;
  std::vector<std::unique_ptr<Communicator>> ranks_;        ///< of all groups, one after the other
  std::vector<Case> cases_;
  std::vector<std::vector<std::vector<double>>> seconds_;  ///< by rank and case: of each sweep
  std::barrier<> together_;
};

}  // namespace cotune
