/// Messages and collectives predicted from a profile: of each kind between so many ranks a line through what was measured,
///   seconds(bytes) = latency_s + bytes · seconds_per_byte,  both ≥ 0,
/// by least squares of the relative errors (MuxTune §4, MX-28). A profile is of threads of one machine: its lines stand for links
/// within a node.
#pragma once

#include <map>
#include <span>
#include <utility>

#include "plan/shapes/cluster.h"
#include "schedule/profiled_collective.h"

namespace cotune {

struct CollectiveFit {
  CollectiveTime time;
  double mean_error = 0;   ///< mean of |fitted − measured| / measured over the sizes
  double worst_error = 0;
  double mean_spread = 0;  ///< of ProfiledCollective::spread
};

class MeasuredCollectives {
 public:
  MeasuredCollectives() = default;
  explicit MeasuredCollectives(std::span<const ProfiledCollective> collectives);

  /// By kind and ranks.
  const std::map<std::pair<CollectiveKind, int64_t>, CollectiveFit>& fits() const { return fits_; }

  /// The link with what was measured: latency and bandwidth of messages, and the lines of collectives. What was not stays as it is.
  LinkSpec over(LinkSpec link) const;

 private:
  std::map<std::pair<CollectiveKind, int64_t>, CollectiveFit> fits_;
};

/// Links within nodes of several devices as they were measured. The network stays as it is.
ClusterSpec with_measured_links(ClusterSpec cluster, const MeasuredCollectives& measured);

}  // namespace cotune
