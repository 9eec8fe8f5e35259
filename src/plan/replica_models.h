/// The replicas of a plan as models to predict with.
#pragma once

#include <vector>

#include "plan/cost/replica_prediction.h"
#include "plan/plan.h"

namespace cotune {

/// In the plan's order. `jobs`: those that the plan names, in its order. `measured`: as in StageMachine. gather_overlap:
/// WeightSharding::overlap.
std::vector<ReplicaModel> replica_models(const Plan& plan, const ModelConfig& model,
                                         const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                                         const MeasuredTimes* measured = nullptr,
                                         double gather_overlap = WeightSharding{}.overlap);

/// How a replica of the plan cuts its rows into microbatches.
ReplicaPacking packing_of(const Plan& plan, const PlannedReplica& replica);

}  // namespace cotune
