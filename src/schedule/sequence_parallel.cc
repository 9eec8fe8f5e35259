#include "schedule/sequence_parallel.h"

#include <algorithm>
#include <map>

#include "model/config/tensor_shard.h"
#include "schedule/adapter_shape.h"

namespace cotune {

std::vector<int64_t> token_slices(int64_t tokens, int64_t ranks) {
  const int64_t size = largest_slice(tokens, ranks);
  std::vector<int64_t> begins;
  for (int64_t rank = 0; rank <= ranks; ++rank) begins.push_back(std::min(rank * size, tokens));
  return begins;
}

int64_t ranks_with_slices(const StageShape& stage) { return stage.is_sequence_parallel ? stage.tensor_parallel : 1; }

int64_t largest_slice(int64_t tokens, int64_t ranks) { return (tokens + ranks - 1) / ranks; }

int64_t largest_slice(int64_t tokens, const StageShape& stage) { return largest_slice(tokens, ranks_with_slices(stage)); }

bool adapts_slices(AdapterMethod method) {
  switch (method) {
    case AdapterMethod::bottleneck: return true;
    case AdapterMethod::lora:
    case AdapterMethod::diff_pruning: return false;
  }
  return false;
}

bool reads_whole_input(AdapterMethod method) {
  switch (method) {
    case AdapterMethod::diff_pruning: return true;
    case AdapterMethod::lora:
    case AdapterMethod::bottleneck: return false;
  }
  return false;
}

bool sums_low_rank(AdapterMethod method) {
  switch (method) {
    case AdapterMethod::lora: return true;
    case AdapterMethod::bottleneck:
    case AdapterMethod::diff_pruning: return false;
  }
  return false;
}

int64_t summand_count(const ModelConfig& config, const StageShape& stage, const AdapterShape& adapter) {
  if (stage.tensor_parallel == 1) return 0;
  if (stage.is_sequence_parallel && adapts_slices(adapter.method)) return parameter_count(config, adapter);
  if (adapter.method != AdapterMethod::lora) return 0;
  const ProjectionSize whole = projection_size(config, adapter.projection);
  return adapter.width * (divides_outputs(adapter.projection) ? whole.in : whole.out);
}

Collective collective_of(const StageShape& stage, const Operator& op) {
  if (!stage.is_sequence_parallel) return Collective::all_reduce;
  switch (op.kind) {
    case OperatorKind::attention_norm:
    case OperatorKind::mlp_norm:
    case OperatorKind::down_error_gather:
    case OperatorKind::gate_up_input_gather:
    case OperatorKind::o_error_gather:
    case OperatorKind::qkv_input_gather: return Collective::all_gather;
    default: return Collective::reduce_scatter;
  }
}

int64_t riding_columns(const StageShape& stage, const Operator& op) {
  const bool is_of_backward = op.kind == OperatorKind::qkv_proj_backward || op.kind == OperatorKind::gate_up_proj_backward ||
                              op.kind == OperatorKind::qkv_adapter_gradient || op.kind == OperatorKind::gate_up_adapter_gradient;
  if (!stage.is_sequence_parallel || !is_of_backward) return 0;
  std::map<int32_t, int64_t> columns;
  int64_t most = 0;
  for (const AdapterShape& adapter : op.adapters) {
    if (sums_low_rank(adapter.method)) most = std::max(most, columns[adapter.job] += adapter.width);
  }
  return most;
}

int64_t collective_columns(const ModelConfig& config, const StageShape& stage, const Operator& op) {
  return riding_columns(stage, op) + (op.without_input_gradient ? 0 : config.hidden_size);
}

}  // namespace cotune
