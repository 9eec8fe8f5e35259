#include "plan/cost/stage_memory.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "model/config/families.h"
#include "model/config/tensor_shard.h"
#include "plan/cost/recomputation.h"
#include "schedule/adapter_shape.h"
#include "schedule/operator_cost.h"

namespace cotune {
namespace {

/// Values of the stage's frozen tensors on one rank.
int64_t frozen_values(const ModelConfig& model, const StageShape& stage) {
  int64_t values = 0;
  // By a model of one layer as a rank has it: its layer's tensors count for each of the stage's.
  ModelConfig one = sharded_config(model, stage.tensor_parallel);
  one.layer_count = 1;
  for (const ModelTensor& tensor : model_tensors(one)) {
    int64_t size = 1;
    for (const int64_t extent : tensor.shape) size *= extent;
    const bool is_of_layer = tensor.name.find(".layers.") != std::string::npos;
    if (!is_of_layer && tensor.shape.size() > 1) size /= stage.tensor_parallel;  // the vocabulary's
    if (is_of_layer) {
      values += size * (stage.last_layer - stage.first_layer);
    } else if (tensor.name.find(".embed_") != std::string::npos) {
      // A tied head is the embedding, which the stage with the head then holds as well.
      const bool is_head = model.tied_embeddings && stage.has_head && tensor.name.find("embed_tokens") != std::string::npos;
      if (stage.has_embedding || is_head) values += size;
    } else if (stage.has_head) {
      values += size;
    }
  }
  return values;
}

}  // namespace

int64_t chain_bytes(const ModelConfig& model, const StageShape& stage, int64_t tokens, int64_t element_size) {
  const int64_t columns = projection_size(model, Projection::k, stage.tensor_parallel).out;
  return tokens * 2 * columns * (element_size + accumulation_bytes(element_size)) * (stage.last_layer - stage.first_layer);
}

int64_t frozen_bytes(const ModelConfig& model, const StageShape& stage, int64_t element_size) {
  return frozen_values(model, stage) * element_size;
}

int64_t frozen_bytes(const ModelConfig& model, const StageShape& stage, const StageMachine& machine) {
  const std::optional<WeightForms>& forms = machine.device.weights;
  if (!forms) return frozen_bytes(model, stage, machine.element_size());
  return forms->are_shared ? 0 : held_weight_bytes(model, stage, *forms);
}

std::string StageMemory::overflowing_term(int64_t limit) const {
  int64_t sum = 0;
  const std::pair<const char*, int64_t> terms[] = {
      {"weights", weights}, {"adapters", adapters}, {"workspace", workspace}, {"activations", activations}};
  for (const auto& [name, bytes] : terms) {
    sum += bytes;
    if (sum > limit) return name;
  }
  return "";
}

Overflow StageMemory::overflow(int64_t limit) const { return {overflowing_term(limit), std::max<int64_t>(0, total() - limit)}; }

StageMemory stage_memory(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                         int64_t moment_count, const MicrobatchCounts& counts, int64_t in_flight, int64_t element_size,
                         bool recompute) {
  StageMemory memory{.weights = frozen_bytes(model, stage, element_size)};
  memory.adapters = adapter_bytes(model, stage, adapters, moment_count);
  memory.workspace = stage_workspace(model, stage, element_size).bytes(counts);
  const std::vector<Operator> forward = stage_operators(model, stage, adapters, Direction::forward);
  if (recompute) {
    const RecomputedBytes bytes = recomputed_bytes(model, stage, forward, counts, element_size);
    memory.activations = bytes.kept;
    memory.workspace += bytes.layer;
  } else {
    for (const Operator& op : forward) memory.activations += saved_bytes(model, stage, op, counts, element_size);
  }
  memory.activations *= in_flight;
  return memory;
}

int64_t adapter_bytes(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                      int64_t moment_count) {
  int64_t bytes = 0;
  for (const AdapterShape& adapter : adapters) {
    if (adapter.layer < stage.first_layer || adapter.layer >= stage.last_layer) continue;
    // Of a factor pair one side is sharded; held whole here, which is what one side's gradient needs as well.
    bytes += parameter_count(model, adapter) * 4 * (2 + moment_count);
  }
  return bytes;
}

int64_t StageWorkspace::bytes(const MicrobatchCounts& counts) const {
  return counts.tokens * per_token + std::min(counts.labelled, logit_rows) * per_logit_row;
}

StageWorkspace stage_workspace(const ModelConfig& model, const StageShape& stage, int64_t element_size) {
  const ModelConfig own = sharded_config(model, stage.tensor_parallel);
  const int64_t intermediate = own.intermediate_size, query = own.query_size() + 2 * own.key_value_size();
  const int64_t gathered = stage.is_sequence_parallel ? 2 * model.hidden_size : 0;
  const int64_t streams = 2 * model.hidden_size * accumulation_bytes(element_size);  // before and after a product
  StageWorkspace workspace;
  workspace.per_token = streams + element_size * (model.hidden_size + gathered + std::max((model.gated ? 4 : 2) * intermediate, 2 * query));
  if (stage.has_head) workspace.per_logit_row = (model.vocabulary_size / stage.tensor_parallel) * (4 + element_size);
  return workspace;
}

std::vector<StageShape> even_stages(const ModelConfig& model, int64_t stages, int64_t tensor_parallel, bool is_sequence_parallel) {
  COTUNE_CHECK(1 <= stages && stages <= model.layer_count, "{} stages of {} layers", stages, model.layer_count);
  std::vector<StageShape> result;
  int64_t first = 0;
  for (int64_t s = 0; s < stages; ++s) {
    const int64_t count = model.layer_count / stages + (s < model.layer_count % stages ? 1 : 0);
    result.push_back({first, first + count, s == 0, s + 1 == stages, tensor_parallel, is_sequence_parallel});
    first += count;
  }
  return result;
}

}  // namespace cotune
