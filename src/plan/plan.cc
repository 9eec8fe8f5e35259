#include "plan/plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/file.h"
#include "plan/deployment/configuration.h"
#include "plan/shapes/cluster_file.h"

namespace cotune {

std::vector<StageShape> PlannedStage::chunks() const {
  std::vector<StageShape> all = {shape};
  all.insert(all.end(), further.begin(), further.end());
  return all;
}

bool PlannedStage::holds(int64_t layer) const {
  const std::vector<StageShape> all = chunks();
  return std::any_of(all.begin(), all.end(),
                     [&](const StageShape& each) { return layer >= each.first_layer && layer < each.last_layer; });
}

std::vector<StageShape> PlannedReplica::layer_runs() const {
  std::vector<StageShape> runs;
  for (const PlannedStage& stage : stages) runs.push_back(stage.shape);
  for (size_t chunk = 0; chunk < stages.front().further.size(); ++chunk) {
    for (const PlannedStage& stage : stages) runs.push_back(stage.further[chunk]);
  }
  return runs;
}

std::vector<size_t> PlannedReplica::uneven_buckets() const {
  std::vector<size_t> uneven;
  for (size_t bucket = 0; bucket < backward_ratio.size(); ++bucket) {
    if (backward_ratio[bucket] > uneven_backward) uneven.push_back(bucket);
  }
  return uneven;
}

std::string hash_of(const ModelConfig& m) {
  const RopeScaling& rope = m.rope_scaling;
  return checksum(fmt::format(
      "{} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {} {}", m.family, m.layer_count,
      m.hidden_size, m.intermediate_size, m.head_count, m.kv_head_count, m.head_dim, m.vocabulary_size,
      m.context_length, m.rms_norm_epsilon, m.rope_theta, static_cast<int>(rope.kind), rope.factor,
      rope.low_freq_factor, rope.high_freq_factor, rope.original_context, fmt::join(rope.divisors, ","),
      m.tied_embeddings, m.qkv_bias, m.gated, m.learned_positions, m.activation, m.dtype));
}

std::string hash_of(const ClusterSpec& cluster) {
  return checksum(to_yaml(cluster));
}

std::string replicas_text(const Plan& plan) {
  // By devices, then by tensor parallelism, descending.
  std::map<std::tuple<int64_t, int64_t, bool, int64_t>, int64_t, std::greater<>> counts;
  for (const PlannedReplica& replica : plan.replicas) {
    ++counts[{replica.devices(), replica.tensor_parallel, replica.is_sequence_parallel, replica.shards}];
  }
  std::vector<std::string> parts;
  for (const auto& [shape, count] : counts) {
    const auto& [devices, tensor_parallel, is_sequence_parallel, shards] = shape;
    const std::string name = configuration_name(tensor_parallel, is_sequence_parallel, devices / tensor_parallel, shards);
    parts.push_back(fmt::format("{}×{}", name, count / shards));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace cotune
