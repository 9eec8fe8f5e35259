/// An instance: devices that hold one backbone and train the jobs that are put on it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/instance_memory.h"
#include "cluster/job_kind.h"
#include "jobs/job.h"
#include "model/config/model_config.h"
#include "plan/cost/operator_seconds.h"
#include "plan/shapes/cluster.h"
#include "plan/shapes/job_shape.h"
#include "schedule/operators.h"

namespace cotune {

struct InstanceSpec {
  ModelConfig model;
  int64_t tensor_parallel = 1;
  int64_t pipeline_stages = 4;
  int64_t microbatches = 4;          ///< of a step, the same for every job (MuxTune's C)
  Sharing sharing = Sharing::hybrid;
  Layout layout = Layout::ragged;    ///< ragged, or padded: rows of a hybrid task to its longest
  StageMachine machine;
  LinkSpec between_stages;           ///< not read for one stage
  int64_t memory_bytes = 0;          ///< of one device, for tensors

  int64_t devices() const { return tensor_parallel * pipeline_stages; }
};

/// Instances of TP·PP devices on a cluster of like nodes, and how many of them it holds: within a node where they
/// fit in one, over whole nodes where they are larger. file_name: of the cluster, in messages. Throws UserError naming the option or the cluster's
/// field: several groups of nodes, degrees that do not divide the model, instances that stand neither in a node nor on whole ones,
/// a layout that the simulation lacks.
struct InstancesOfCluster {
  InstanceSpec spec;
  int64_t count = 0;
};
InstancesOfCluster instances_of(const ClusterSpec& cluster, const ModelConfig& model, int64_t tensor_parallel,
                                int64_t pipeline_stages, const std::string& file_name = "cluster");

/// Every adapter of a job of that kind: LoRA and diff pruning (density 0.5%) on all linear projections, bottleneck adapters
/// where they always are.
std::vector<AdapterShape> adapter_shapes(const JobKind& kind, int32_t job, const ModelConfig& model);

/// A job of that kind as planning takes it. job: its place in the list.
JobShape shape_of(const JobKind& kind, int32_t job, const ModelConfig& model);

}  // namespace cotune
