#include "plan/deployment/system_deployments.h"

namespace cotune {

std::string_view to_string(System system) {
  switch (system) {
    case System::task_fused: return "Task-Fused";
    case System::task_sequential: return "Task-Sequential";
    case System::lobra_sequential: return "LobRA-Sequential";
    case System::lobra: return "LobRA";
  }
  return "";
}

std::vector<std::vector<int64_t>> like_replicas(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, int64_t devices) {
  size_t longest = 0;
  for (size_t j = 0; j < sequences.size(); ++j) {
    if (sequences[j] > 0) longest = j + 1;
  }
  std::vector<std::vector<int64_t>> found;
  for (size_t i = 0; i < costs.size(); ++i) {
    const int64_t count = devices / costs[i].devices;
    if (count == 0 || costs[i].reach() < longest) continue;
    found.emplace_back(costs.size(), 0)[i] = count;
  }
  return found;
}

Deployment deploy_alike(const StepWork& work, int64_t devices) {
  Deployment best;
  for (std::vector<int64_t>& replicas : like_replicas(work.costs, work.sequences, devices)) {
    Deployment plan;
    plan.replicas = std::move(replicas);
    plan.dispatch = dispatch_balanced(work.costs, plan.replicas, work.sequences);
    plan.lower_bound = plan.dispatch.lower_bound;
    const bool is_better = best.empty() || plan.dispatch.makespan < best.dispatch.makespan;
    const double bound = best.empty() ? plan.lower_bound : std::min(best.lower_bound, plan.lower_bound);
    if (is_better) best = std::move(plan);
    best.lower_bound = bound;
  }
  return best;
}

Deployment deploy_unlike(const StepWork& work, int64_t devices, const DeploymentLimits& limits) {
  Deployment unlike = plan_deployment(work.costs, work.sequences, devices, limits);
  Deployment alike = deploy_alike(work, devices);
  if (unlike.empty() || (!alike.empty() && alike.dispatch.makespan < unlike.dispatch.makespan)) {
    unlike.replicas = alike.replicas;
    unlike.dispatch = alike.dispatch;
    unlike.lower_bound = std::min(unlike.lower_bound, alike.dispatch.makespan);
  }
  return unlike;
}

}  // namespace cotune
