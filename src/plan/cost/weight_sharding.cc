#include "plan/cost/weight_sharding.h"

#include <algorithm>
#include <optional>

namespace cotune {
namespace {

/// Bytes of what is gathered at a time, on one tensor-parallel rank.
struct GatheredUnits {
  int64_t layer = 0, embedding = 0, head = 0;
};

GatheredUnits gathered_units(const ModelConfig& model, const StageShape& stage, int64_t element_size) {
  const auto bytes = [&](bool has_layer, bool has_embedding, bool has_head) {
    return frozen_bytes(model, {0, has_layer ? 1 : 0, has_embedding, has_head, stage.tensor_parallel}, element_size);
  };
  return {stage.last_layer > stage.first_layer ? bytes(true, false, false) : 0,
          stage.has_embedding ? bytes(false, true, false) : 0, stage.has_head ? bytes(false, false, true) : 0};
}

}  // namespace

double all_gather_seconds(double bytes, int64_t ranks, const LinkSpec& link) {
  if (ranks <= 1) return 0;
  if (const std::optional<double> measured = link.measured_seconds(CollectiveKind::all_gather, ranks, bytes)) return *measured;
  const double steps = static_cast<double>(ranks - 1);
  return steps / static_cast<double>(ranks) * bytes / link.bandwidth + steps * link.latency;
}

double seconds_with_gathering(double compute, double gather, double overlap) {
  return compute + gather - std::min(overlap * gather, compute);
}

StageMemory with_sharded_weights(StageMemory memory, const ModelConfig& model, const StageShape& stage,
                                 const WeightSharding& sharding, const StageMachine& machine) {
  if (sharding.shards <= 1) return memory;
  if (const std::optional<WeightForms>& forms = machine.device.weights) {
    memory.weights = forms->are_shared ? 0 : held_weight_bytes(model, stage, *forms, sharding.shards);
    return memory;
  }
  const GatheredUnits units = gathered_units(model, stage, machine.element_size());
  const int64_t whole = memory.weights;
  memory.weights = (whole + sharding.shards - 1) / sharding.shards +
                   (sharding.overlap > 0 ? 2 : 1) * std::max({units.layer, units.embedding, units.head});
  return memory;
}

double gathering_seconds(const ModelConfig& model, const StageShape& stage, const WeightSharding& sharding, int64_t element_size,
                         const LinkSpec& link) {
  if (sharding.shards <= 1) return 0;
  const GatheredUnits units = gathered_units(model, stage, element_size);
  const auto unit_seconds = [&](int64_t bytes) {
    return bytes == 0 ? 0 : all_gather_seconds(static_cast<double>(bytes), sharding.shards, link);
  };
  return static_cast<double>(stage.last_layer - stage.first_layer) * unit_seconds(units.layer) + unit_seconds(units.embedding) +
         unit_seconds(units.head);
}

StageSeconds with_gathered_weights(const StageSeconds& seconds, double gathering, const WeightSharding& sharding) {
  if (sharding.shards <= 1) return seconds;
  return {seconds_with_gathering(seconds.forward, gathering, sharding.overlap),
          seconds_with_gathering(seconds.backward, gathering, sharding.overlap)};
}

StageSeconds with_gathered_weights(const StageSeconds& seconds, const ModelConfig& model, const StageShape& stage,
                                   const WeightSharding& sharding, int64_t element_size, const LinkSpec& link) {
  return with_gathered_weights(seconds, gathering_seconds(model, stage, sharding, element_size, link), sharding);
}

}  // namespace cotune
