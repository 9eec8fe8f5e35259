/// The systems that LobRA is compared with (§3, §5.1), as deployments of the same devices: Task-Fused, Task-Sequential,
/// LobRA-Sequential and LobRA itself (LB-8, LB-9, LB-12, LB-15). A sequential system is the sum over its tasks.
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

/// For every configuration that holds the longest sequences, in their order: as many replicas of it as the devices hold, and no others.
/// None where the devices hold no such replica.
std::vector<std::vector<int64_t>> like_replicas(std::span<const BucketCosts> costs, std::span<const int64_t> sequences, int64_t devices);

/// Replicas of one configuration, as many as the devices hold; the configuration whose slowest replica ends first. Every
/// bucket is spread evenly. Empty where no configuration holds the longest bucket.
Deployment deploy_alike(const StepWork& work, int64_t devices);

/// Unlike replicas (plan_deployment), or like ones where those end first: never slower than deploy_alike (LB-33).
Deployment deploy_unlike(const StepWork& work, int64_t devices, const DeploymentLimits& limits = {});

}  // namespace cotune
