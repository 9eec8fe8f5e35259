#include "plan/plan_origin.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "jobs/job_list.h"

namespace cotune {
namespace {

void check_device(const PlannedDevice& device, const ClusterSpec& cluster) {
  const auto group = std::ranges::find(cluster.nodes, device.nodes, &NodeGroup::name);
  if (group == cluster.nodes.end()) {
    std::vector<std::string> names;
    for (const NodeGroup& each : cluster.nodes) names.push_back(each.name);
    throw_user_error("devices: the plan is of nodes `{}`, the cluster has {}", device.nodes, fmt::join(names, ", "));
  }
  if (device.node >= group->count || device.device >= group->devices) {
    throw_user_error("devices: the plan has device {} of node {} of `{}`, where the cluster has {} nodes of {} devices", device.device, device.node,
                     device.nodes, group->count, group->devices);
  }
}

}  // namespace

std::string mistake_in_layers(const PlannedReplica& replica, const ModelConfig& model) {
  const int64_t last = replica.layer_runs().back().last_layer;
  return last == model.layer_count ? "" : fmt::format("must end at {}, the model's layers; got {}", model.layer_count, last);
}

void check_plan(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster, const std::vector<JobShape>& jobs) {
  if (plan.model_hash != hash_of(model)) {
    throw_user_error("model: the plan was made for another model: must be {}, the hash of this one, got {}; `cotune plan` makes one for this",
                     hash_of(model), plan.model_hash.empty() ? "none" : plan.model_hash);
  }
  std::vector<std::string> names;
  for (const JobShape& job : jobs) names.push_back(job.name);
  if (plan.jobs != names) {
    throw_user_error("jobs: the plan is of the jobs {}, the jobs file has {}", job_list(plan.jobs), job_list(names));
  }
  for (size_t r = 0; r < plan.replicas.size(); ++r) {
    const PlannedReplica& replica = plan.replicas[r];
    const std::string mistake = mistake_in_layers(replica, model);
    if (!mistake.empty()) throw_user_error("replicas[{}].stages: {}", r, mistake);
    for (const PlannedStage& stage : replica.stages) {
      for (const PlannedDevice& device : stage.devices) check_device(device, cluster);
    }
  }
}

std::string other_origin(const Plan& plan, const ClusterSpec& cluster, const std::string& profile_hash) {
  std::vector<std::string> others;
  if (plan.cluster_hash != hash_of(cluster)) others.emplace_back("cluster");
  if (plan.profile_hash != profile_hash) others.emplace_back("profile");
  return others.empty() ? "" : fmt::format("another {}", fmt::join(others, " and "));
}

}  // namespace cotune
