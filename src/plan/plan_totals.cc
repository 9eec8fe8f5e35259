#include "plan/plan_totals.h"

#include <algorithm>

#include "plan/cost/operator_seconds.h"
#include "plan/placement.h"
#include "schedule/adapter_shape.h"

namespace cotune {

LinkSpec exchange_link(const Plan& plan, const ClusterSpec& cluster) {
  const PlannedDevice& first = plan.replicas.front().stages.front().devices.front();
  for (const PlannedReplica& replica : plan.replicas) {
    for (const PlannedStage& stage : replica.stages) {
      for (const PlannedDevice& device : stage.devices) {
        if (device.nodes != first.nodes || device.node != first.node) return cluster.network;
      }
    }
  }
  return nodes_called(cluster, first.nodes).link;
}

int64_t exchanged_parameters(const PlannedReplica& replica, const ModelConfig& model, const std::vector<JobShape>& jobs) {
  int64_t most = 0;
  for (const PlannedStage& stage : replica.stages) {
    int64_t parameters = 0;
    for (const JobShape& job : jobs) {
      for (const AdapterShape& each : job.adapters) {
        if (stage.holds(each.layer)) parameters += parameter_count(model, each);
      }
    }
    most = std::max(most, parameters);
  }
  return most;
}

double exchange_seconds(int64_t parameters, int64_t replicas, const LinkSpec& link) {
  return replicas < 2 ? 0 : all_reduce_seconds(static_cast<double>(parameters * 4), replicas, link);
}

double exchange_seconds(const Plan& plan, const ModelConfig& model, const std::vector<JobShape>& jobs, const LinkSpec& link) {
  int64_t most = 0;
  for (const PlannedReplica& replica : plan.replicas) most = std::max(most, exchanged_parameters(replica, model, jobs));
  return exchange_seconds(most, static_cast<int64_t>(plan.replicas.size()), link);
}

PredictedStep predicted_step(const Plan& plan, const ModelConfig& model, const ClusterSpec& cluster,
                             const std::vector<JobShape>& jobs) {
  PredictedStep step;
  double busy = 0, while_computing = 0;
  for (const PlannedReplica& replica : plan.replicas) {
    step.seconds = std::max(step.seconds, replica.seconds);
    step.tokens += replica.tokens;
    step.processed_tokens += replica.processed_tokens;
    while_computing += replica.seconds * static_cast<double>(replica.devices());
    for (const PlannedStage& stage : replica.stages) {
      busy += stage.busy_s * static_cast<double>(replica.tensor_parallel);
      step.fullest_bytes = std::max(step.fullest_bytes, stage.memory.total());
    }
  }
  if (step.seconds <= 0) return step;
  const NodeGroup& group = nodes_called(cluster, plan.replicas.front().stages.front().devices.front().nodes);
  step.exchange_s = exchange_seconds(plan, model, jobs, exchange_link(plan, cluster));
  step.seconds += step.exchange_s;
  step.device_seconds = step.seconds * static_cast<double>(group.count * group.devices);
  step.bubble = std::max(0.0, 1 - busy / while_computing);
  step.idle = std::max(0.0, 1 - busy / step.device_seconds);
  step.cost = step.device_seconds / 3600 * group.device.cost_per_hour;
  return step;
}

}  // namespace cotune
