/// Which rows of the typical step the replicas of a plan get.
#pragma once

#include <vector>

#include "plan/plan.h"
#include "plan/plan_options.h"
#include "plan/shapes/job_shape.h"
#include "plan/shapes/typical_step.h"

namespace cotune {

/// As planning dealt them: dispatch_balanced over the plan's replica counts. `jobs`: those that the plan names, in its order.
/// `options`: those that the plan was made with; dtype, layout, chunk size and savings are the plan's. Throws UserError where
/// model, cluster, profile or the jobs' names are not those of the plan, or its replicas do not hold the rows.
std::vector<std::vector<StepRow>> planned_rows(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster,
                                               const std::vector<JobShape>& jobs, PlanOptions options = {});

}  // namespace cotune
