#include "plan/planned_rows.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "plan/deployment/placement.h"
#include "plan/nodes_planner.h"

namespace cotune {
namespace {

void check_origin(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster,
                  const std::vector<JobShape>& jobs, const PlanOptions& options) {
  const auto refuse = [](const char* what) { throw_user_error("the plan was made for {}; `cotune plan` makes one for this", what); };
  if (plan.model_hash != hash_of(model)) refuse("another model");
  if (plan.cluster_hash != hash_of(cluster)) refuse("another cluster");
  if (plan.profile_hash != options.profile_hash) refuse("another profile, or none");
  std::vector<std::string> names;
  for (const JobShape& job : jobs) names.push_back(job.name);
  if (plan.jobs != names) {
    throw_user_error("the plan is of the jobs {}, the jobs file has {}", fmt::join(plan.jobs, ", "), fmt::join(names, ", "));
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
