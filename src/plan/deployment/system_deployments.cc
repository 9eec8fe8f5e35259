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

Deployment deploy_alike(const StepWork& work, int64_t devices) {
  size_t longest = 0;
  for (size_t j = 0; j < work.sequences.size(); ++j) {
    if (work.sequences[j] > 0) longest = j + 1;
  }
  Deployment best;
  for (size_t i = 0; i < work.costs.size(); ++i) {
    const int64_t replicas = devices / work.costs[i].devices;
    if (replicas == 0 || work.costs[i].reach() < longest) continue;
    Deployment plan;
    plan.replicas.assign(work.costs.size(), 0);
    plan.replicas[i] = replicas;
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

SystemDeployment deploy_system(System system, const StepWork& together, std::span<const StepWork> tasks, int64_t devices,
                               const DeploymentLimits& limits) {
  const bool is_joint = system == System::task_fused || system == System::lobra;
  const bool is_alike = system == System::task_fused || system == System::task_sequential;
  SystemDeployment result;
  for (const StepWork& work : is_joint ? std::span(&together, 1) : tasks) {
    Deployment step = is_alike ? deploy_alike(work, devices) : deploy_unlike(work, devices, limits);
    if (step.empty()) return {};
    result.seconds += step.dispatch.makespan;
    result.steps.push_back(std::move(step));
  }
  result.gpu_seconds = static_cast<double>(devices) * result.seconds;
  return result;
}

}  // namespace cotune
