/// The systems that LobRA is compared with (§3, §5.1), as deployments of the same devices: Task-Fused, Task-Sequential,
/// LobRA-Sequential and LobRA itself (LB-7, LB-8, LB-9, LB-12, LB-15).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "plan/deployment/deployment.h"

namespace cotune {

enum class System {
  task_fused,        ///< all tasks in one step, replicas of one configuration that holds the longest row of any task
  task_sequential,   ///< task after task, each on replicas of the one configuration that is best for it
  lobra_sequential,  ///< task after task, each on its own unlike replicas
  lobra,             ///< all tasks in one step on unlike replicas
};
inline constexpr System all_systems[] = {System::task_fused, System::task_sequential, System::lobra_sequential, System::lobra};
std::string_view to_string(System system);  ///< "Task-Fused", …

/// The expected step of one task, or of all: the configurations' costs for its buckets, and its sequences by bucket.
struct StepWork {
  std::vector<BucketCosts> costs;
  std::vector<int64_t> sequences;
};

/// Replicas of one configuration, as many as the devices hold; the configuration whose slowest replica ends first. Every
/// bucket is spread evenly. Empty where no configuration holds the longest bucket.
Deployment deploy_alike(const StepWork& work, int64_t devices);

/// Unlike replicas (plan_deployment), or like ones where those end first: never slower than deploy_alike (LB-33).
Deployment deploy_unlike(const StepWork& work, int64_t devices, const DeploymentLimits& limits = {});

struct SystemDeployment {
  std::vector<Deployment> steps;  ///< one, or one per task in turn; empty where one of them cannot be deployed
  double seconds = 0;             ///< a step of every task
  double gpu_seconds = 0;         ///< LB-7: devices · seconds, idle devices included
};

/// `together`: the step of all tasks, with buckets of its own; `tasks`: those of every task alone. Only the one that the
/// system needs is read.
SystemDeployment deploy_system(System system, const StepWork& together, std::span<const StepWork> tasks, int64_t devices,
                               const DeploymentLimits& limits = {});

}  // namespace cotune
