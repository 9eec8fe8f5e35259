#include "plan/cost/recomputation.h"

#include <algorithm>
#include <iterator>
#include <map>

#include "schedule/operator_cost.h"
#include "schedule/sequence_parallel.h"

namespace cotune {

std::vector<Operator> recomputed_operators(const std::vector<Operator>& forward) {
  std::vector<Operator> again;
  std::copy_if(forward.begin(), forward.end(), std::back_inserter(again), [](const Operator& op) {
    return op.keeps && op.layer >= 0 && (op.kind != OperatorKind::down_proj || !op.adapters.empty());
  });
  return again;
}

int64_t kept_input_bytes(const ModelConfig& model, const StageShape& stage, const Operator& op,
                         const MicrobatchCounts& counts, int64_t element_size) {
  if (!op.keeps) return 0;
  if (op.kind == OperatorKind::attention_norm) return largest_slice(counts.tokens, stage) * model.hidden_size * accumulation_bytes(element_size);
  if (op.kind != OperatorKind::down_proj) return 0;
  Operator bare = op;
  bare.adapters.clear();
  return saved_bytes(model, stage, bare, counts, element_size);
}

RecomputedBytes recomputed_bytes(const ModelConfig& model, const StageShape& stage, const std::vector<Operator>& forward,
                                 const MicrobatchCounts& counts, int64_t element_size) {
  RecomputedBytes bytes;
  std::map<int64_t, int64_t> layers;
  for (const Operator& op : forward) {
    bytes.kept += kept_input_bytes(model, stage, op, counts, element_size);
    bytes.layer = std::max(bytes.layer, layers[op.layer] += saved_bytes(model, stage, op, counts, element_size));
  }
  return bytes;
}

}  // namespace cotune
