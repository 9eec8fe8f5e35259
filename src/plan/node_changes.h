/// What one more node would change, and one fewer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/make_plan.h"

namespace cotune {

/// The best plan with another number of nodes of one kind.
struct NodeChange {
  std::string nodes;        ///< name of the kind
  int64_t from = 0, to = 0;
  std::string replicas;     ///< replicas_text; "" where nothing fits
  PredictedStep predicted;
  bool saves_memory = false;  ///< by recomputation or sharded weights
  std::string assumed_network;  ///< between nodes, where the cluster file has none (row_needs.h); "": it has one, or there is one node
  std::string constraint;   ///< why nothing fits; "": it does
  bool operator==(const NodeChange&) const = default;

  bool fits() const { return constraint.empty(); }
  /// Seconds of a step before over those after; 0 where nothing fits.
  double speed_up(const PredictedStep& before) const { return fits() ? before.seconds / predicted.seconds : 0; }
};

/// One more and one fewer of the kind that the plan stands on (fewer only where there are several), each by make_plan, with the sharing
/// policies hybrid and the plan's own, and the orders automatic, the plan's own and those for few microbatches; memory is saved only where
/// the plan does so, or nothing fits without. A network that a second node needs is with_network's. Nothing where there is no plan: its
/// advice says what would help.
std::vector<NodeChange> node_changes(const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                                     const PlanOptions& options, const PlanningResult& result);

}  // namespace cotune
