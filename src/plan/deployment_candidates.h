/// Which replica counts are worth simulating on one kind of nodes, the shortest by their estimates first.
#pragma once

#include <vector>

#include "plan/deployment/deployment.h"
#include "plan/node_replicas.h"

namespace cotune {

/// Like replicas (LobRA's Task-Fused) of every configuration that holds all rows: as many as there is room for, and, where devices may idle, the best
/// smaller number by the linear model and the exchange of gradients, and one, unless that model has them far above the best. There must be a
/// deployment (NodeReplicas::no_deployment). Sorted by fitting_s, so that what may fit otherwise is tried. Only such as save memory as they should.
std::vector<EstimatedDeployment> like_deployments(NodeReplicas& nodes, const PlanOptions& options);

struct UnlikeDeployments {
  std::vector<EstimatedDeployment> found;  ///< as like_deployments, and those among them
  Deployment closed_form;                  ///< what plan_deployment says of all devices; over the proposed configurations
};

/// Beside these the unlike replicas (LobRA's) that plan_deployment finds on all devices, and its runners-up; where devices may idle and a bound
/// leaves room for a shorter step, also on one node less and on halves of the nodes. Configurations that suit no length best, but for that of the
/// best like replicas, are for like replicas only, and are told so (NodeReplicas::reject), unless there are few vectors of replica counts.
UnlikeDeployments unlike_deployments(NodeReplicas& nodes, const PlanOptions& options);

}  // namespace cotune
