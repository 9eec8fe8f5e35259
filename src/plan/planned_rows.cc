#include "plan/planned_rows.h"


#include <algorithm>

#include "base/error.h"
#include "jobs/job_list.h"
#include "plan/deployment/placement.h"
#include "plan/nodes_planner.h"

namespace cotune {
namespace {

void check_origin(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster,
                  const std::vector<JobShape>& jobs, const PlanOptions& options) {
  const auto check = [](const char* field, const std::string& found, const std::string& here) {
    if (found == here) return;
    const auto text = [](const std::string& hash) { return hash.empty() ? "none" : hash; };
    throw_user_error("{}: the plan was made for another {}: must be {}, the hash of this one, got {}; `cotune plan` makes one for this", field,
                     field, text(here), text(found));
  };
  check("model", plan.model_hash, hash_of(model));
  check("profile", plan.profile_hash, options.profile_hash);  // first: links of the cluster may be the profile's
  check("cluster", plan.cluster_hash, hash_of(cluster));
  std::vector<std::string> names;
  for (const JobShape& job : jobs) names.push_back(job.name);
  if (plan.jobs != names) {
    throw_user_error("jobs: the plan is of the jobs {}, the jobs file has {}", job_list(plan.jobs), job_list(names));
  }
}

}  // namespace

std::vector<std::vector<StepRow>> planned_rows(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster,
                                               const std::vector<JobShape>& jobs, PlanOptions options) {
  check_origin(plan, model, cluster, jobs, options);
  options.dtype = plan.dtype;
  options.layout = plan.layout;
  options.chunk_size = plan.chunk_size;
  MemorySaving saving{.recompute = plan.recompute == Recompute::always};
  const bool shards = std::any_of(plan.replicas.begin(), plan.replicas.end(),
                                  [](const PlannedReplica& replica) { return replica.shards > 1; });
  for (const MemorySaving& each : options.savings) {
    if (shards) saving.most_shards = std::max(saving.most_shards, each.most_shards);
  }
  const NodeGroup& group = nodes_called(cluster, plan.replicas.front().stages.front().devices.front().nodes);
  return NodesPlanner(model, cluster, group, jobs, options, saving).rows_of(plan);
}

}  // namespace cotune
