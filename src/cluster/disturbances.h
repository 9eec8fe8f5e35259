/// What is slower than planned in the simulation of a step: stages (stragglers) and links.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "schedule/pipeline/pipeline_cluster.h"

namespace cotune {

/// Messages between two ranks take `factor` times as long, either way: bandwidth divided, latency multiplied.
struct SlowLink {
  int64_t a = 0, b = 0;
  double factor = 1;
  bool operator==(const SlowLink&) const = default;
};

/// A rank is a tensor-parallel group: one stage of one replica, counted over the replicas, those of replica 0 from its first stage on,
/// then those of replica 1.
struct Disturbances {
  std::vector<Slowdown> stages;  ///< moments: from the start of the simulated steps on
  std::vector<SlowLink> links;

  bool empty() const { return stages.empty() && links.empty(); }
  /// Throws UserError, naming --slow or --slow-link, for a rank that is none, and for a link that nothing is sent over: stages of one
  /// replica that are not neighbours, or of two replicas that hold no layer in common.
  void check(const Plan& plan) const;
  /// The replica that begins at `first_rank`, with what concerns it; `start_s`: when its run begins.
  PipelineCluster slowed(const PipelineCluster& links, int64_t first_rank, int64_t stage_count, double start_s) const;
  /// What the ring all-reduce between replicas goes at: the worst latency and bandwidth of the plan's link (plan/plan_totals.h) and of the slowed
  /// ones between replicas.
  LinkSpec exchange_link(const Plan& plan, const ClusterSpec& cluster) const;
};

/// `RANK:FACTOR` or `RANK:FACTOR:FROM_MS:UNTIL_MS`, factor from 1 to 10⁶. Throws UserError.
Slowdown parse_slowdown(const std::string& text);
/// `A-B:FACTOR`, likewise.
SlowLink parse_slow_link(const std::string& text);

}  // namespace cotune
