/// What a plan was made for, beside what is at hand.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/shapes/job_shape.h"

namespace cotune {

/// Of a replica whose last stage does not end with the model's layers: where it must end; "": it does.
std::string mistake_in_layers(const PlannedReplica& replica, const ModelConfig& model);

/// Throws UserError where the plan is of another model or of other jobs (`jobs`: those that it names, in its order), has other layers than the
/// model, or devices that the cluster lacks.
void check_plan(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs);

/// "another cluster", "another profile", "another cluster and profile": what its prices came from, where that is not `cluster` and the
/// profile of that hash; "": its predictions are those of today.
std::string other_origin(const Plan& plan, const ClusterSpec& cluster, const std::string& profile_hash);

}  // namespace cotune
