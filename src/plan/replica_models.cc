#include "plan/replica_models.h"

#include "plan/placement.h"

namespace cotune {

std::vector<ReplicaModel> replica_models(const Plan& plan, const ModelConfig& model,
                                         const ClusterSpec& cluster, const std::vector<JobShape>& jobs,
                                         const MeasuredTimes* measured, double gather_overlap) {
  std::vector<ReplicaModel> models;
  for (const PlannedReplica& replica : plan.replicas) {
    const NodeGroup& group = nodes_called(cluster, replica.stages.front().devices.front().nodes);
    ReplicaModel& each = models.emplace_back();
    each.model = model;
    each.jobs = jobs;
    each.stages = replica.layer_runs();
    each.chunks = replica.chunks();
    each.machine = {.device = group.device,
                    .link = cluster.link_of(group, replica.tensor_parallel),
                    .dtype = plan.dtype,
                    .measured = measured,
                    .recompute = plan.recompute == Recompute::always};
    each.links = links_between_stages(cluster, replica.stages);
    each.memory_limit = group.device.usable_bytes();
    each.sharding = {replica.shards, gather_overlap};
    each.between_copies = cluster.link_of(group, replica.devices() * replica.shards);
  }
  return models;
}

ReplicaPacking packing_of(const Plan& plan, const PlannedReplica& replica) {
  return {.sharing = plan.sharing,
          .layout = plan.layout,
          .chunk_size = plan.chunk_size,
          .token_budget = replica.token_budget,
          .hybrid_tasks = replica.hybrid_tasks,
          .buckets = replica.buckets,
          .least_microbatches = replica.least_microbatches};
}

}  // namespace cotune
