/// The exchange of adapter gradients between replicas, cut into buckets that follow the last backward down the layers.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// The exchange of adapter gradients, hidden behind the last backward as far as that goes.
struct HiddenExchange {
  int64_t buckets = 1;   ///< all-reduces that a stage's gradients are exchanged in, from its last layer down
  double seconds = 0;    ///< of all of a stage's, the longest of all stages
  double exposed_s = 0;  ///< after the last backward of all replicas; optimizer steps follow
  bool operator==(const HiddenExchange&) const = default;
};

/// The last backward of a run of layers: when it starts and ends within the replica's step.
struct LastBackward {
  double start_s = 0, end_s = 0;
};

/// Gradients of a layer are ready when every replica's last backward has passed it (layers of a run evenly over that backward), and are
/// exchanged one bucket after the other: max(ready, previous end) + ring all-reduce. Of 1, 2, 4, … buckets the number that leaves least
/// exposed. `last`: by replica of the plan and PlannedReplica::layer_runs(); link: that gradients go over.
HiddenExchange hide_exchange(const Plan& plan, const ModelConfig& model, const std::vector<JobShape>& jobs, const LinkSpec& link,
                             const std::vector<std::vector<LastBackward>>& last);

}  // namespace cotune
