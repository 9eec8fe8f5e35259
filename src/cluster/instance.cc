#include "cluster/instance.h"

#include <algorithm>

#include "base/error.h"
#include "model/config/tensor_shard.h"
#include "plan/placement.h"
#include "plan/shapes/cluster_file.h"
#include "plan/shapes/job_shape.h"
#include "plan/shapes/replica_sizes.h"

namespace cotune {

InstancesOfCluster instances_of(const ClusterSpec& cluster, const ModelConfig& model, int64_t tensor_parallel,
                                int64_t pipeline_stages, const std::string& file_name) {
  check_like_nodes(cluster, file_name, "the simulation of a trace");
  const NodeGroup& group = cluster.nodes.front();
  const int64_t devices = tensor_parallel * pipeline_stages;
  if (!can_be_sharded(model, tensor_parallel)) {
    throw_user_error("--instance: {} ranks of tensor parallelism must divide the model's {} heads and feed-forward width {}, and divide its "
                     "{} key-value heads or be a multiple of them", tensor_parallel, model.head_count, model.intermediate_size,
                     model.kv_head_count);
  }
  if (pipeline_stages > model.layer_count) {
    throw_user_error("--instance: {} stages of {} layers", pipeline_stages, model.layer_count);
  }
  if (!stands_on_nodes(group, devices)) {
    throw_user_error("--instance: {} devices must be at most the {} of a node, or whole nodes of the {} there are", devices,
                     group.devices, group.count);
  }
  InstancesOfCluster result;
  result.spec.model = model;
  result.spec.tensor_parallel = tensor_parallel;
  result.spec.pipeline_stages = pipeline_stages;
  result.spec.machine = {.device = group.device};
  if (tensor_parallel > 1) result.spec.machine.link = cluster.link_of(group, tensor_parallel);
  if (pipeline_stages > 1) result.spec.between_stages = cluster.link_of(group, devices);
  result.spec.memory_bytes = group.device.usable_bytes();
  result.count = most_replicas(devices, group);
  return result;
}

std::vector<AdapterShape> adapter_shapes(const JobKind& kind, int32_t job, const ModelConfig& model) {
  JobSpec spec;
  spec.name = kind.name();
  spec.adapter.method = kind.method;
  spec.adapter.r = kind.width;
  spec.adapter.bottleneck_size = kind.width;
  spec.adapter.target_modules = {"all-linear"};  // where the method leaves a choice
  return adapter_shapes(spec, job, model);
}

JobShape shape_of(const JobKind& kind, int32_t job, const ModelConfig& model) {
  return {.name = kind.name(), .batch_size = kind.rows, .lengths = {.weights = {{kind.tokens, 1.0}}}, .adapters = adapter_shapes(kind, job, model)};
}

}  // namespace cotune
