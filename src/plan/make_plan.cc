#include "plan/make_plan.h"

#include <algorithm>
#include <iterator>

#include "base/error.h"
#include "plan/nodes_planner.h"
#include "plan/plan_advice.h"

namespace cotune {
namespace {

/// The job as the only one.
JobShape alone(JobShape job) {
  for (AdapterShape& each : job.adapters) each.job = 0;
  return job;
}

/// One job after the other: a sum over jobs for every order.
std::vector<Alternative> plan_in_turn(const ModelConfig& model, const ClusterSpec& cluster,
                                      const NodeGroup& group, const std::vector<JobShape>& jobs,
                                      const PlanOptions& options, System system) {
  std::vector<std::vector<Alternative>> of_jobs;
  std::vector<std::string> names;
  for (const JobShape& job : jobs) {
    const std::vector<JobShape> only = {alone(job)};
    of_jobs.push_back(
        NodesPlanner(model, cluster, group, only, options).plan(system, {Sharing::separate}, options.orders));
    names.push_back(job.name);
  }
  return sums_in_turn(of_jobs, names, group.count * group.devices);
}

}  // namespace

PlanningResult make_plan(const ModelConfig& model, const ClusterSpec& cluster,
                         const std::vector<JobShape>& jobs, const PlanOptions& options) {
  COTUNE_CHECK(!jobs.empty() && !cluster.nodes.empty(), "{} jobs, {} kinds of nodes", jobs.size(),
               cluster.nodes.size());
  COTUNE_CHECK(options.replicas.most_shards == 1,
               "copies that share their weights are no replicas of a plan yet");
  PlanningResult result;
  std::vector<Alternative> best;
  double least = 0;
  for (const NodeGroup& group : cluster.nodes) {
    NodesPlanner planner(model, cluster, group, jobs, options);
    PlanningResult here;
    for (const System system : options.deployments) {
      std::vector<Alternative> found = is_sequential(system)
                                           ? plan_in_turn(model, cluster, group, jobs, options, system)
                                           : planner.plan(system, options.sharing, options.orders);
      std::move(found.begin(), found.end(), std::back_inserter(here.alternatives));
    }
    here.chosen = choose(here.alternatives);
    result.configurations.insert(result.configurations.end(), planner.considered().begin(),
                                 planner.considered().end());
    result.deployments.insert(result.deployments.end(), planner.considered_deployments().begin(),
                              planner.considered_deployments().end());
    const double seconds = here.chosen ? here.alternatives[*here.chosen].predicted.seconds : 0;
    const bool is_better = here.chosen && (!result.chosen || seconds < least);
    if (is_better || &group == &cluster.nodes.front()) {
      result.alternatives = std::move(here.alternatives);
      result.chosen = here.chosen;
      result.lobra = planner.lobra();
      least = seconds;
    }
  }
  if (!result.chosen) result.advice = advise(model, cluster, jobs, options.dtype, options.replicas);
  return result;
}

}  // namespace cotune
