#include "plan/cost/stage_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "plan/cost/recomputation.h"

namespace cotune {
namespace {

/// The jobs' adapters at one operator, fused: see stage_cost.h. `base`: the operator without any.
double fused_adapter_seconds(const ModelConfig& model, const StageShape& stage, const Operator& op,
                             const MicrobatchCounts& counts, const StageMachine& machine, const OperatorCost& base) {
  double slowest = 0, work = 0;
  Operator alone = op;
  for (size_t begin = 0; begin < op.adapters.size();) {
    // The adapters of one job at this operator stand together.
    size_t end = begin;
    while (end < op.adapters.size() && op.adapters[end].job == op.adapters[begin].job) ++end;
    alone.adapters.assign(op.adapters.begin() + static_cast<std::ptrdiff_t>(begin),
                          op.adapters.begin() + static_cast<std::ptrdiff_t>(end));
    OperatorCost cost = operator_cost(model, stage, alone, counts, machine.element_size());
    cost.flops -= base.flops;
    cost.bytes_moved -= base.bytes_moved;
    if (cost.adapter_calls > 0) {
      slowest = std::max(slowest, operator_seconds(cost, cost.adapter_calls, machine));
      work += work_seconds(cost, machine);
    }
    begin = end;
  }
  return std::max(slowest, work);
}

StageSeconds full_seconds(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                          const MicrobatchCounts& counts, const StageMachine& machine) {
  const std::vector<Operator> forward = stage_operators(model, stage, adapters, Direction::forward);
  const std::vector<Operator> backward = stage_operators(model, stage, adapters, Direction::backward);
  StageSeconds seconds{list_seconds(model, stage, forward, counts, machine),
                       list_seconds(model, stage, backward, counts, machine)};
  if (machine.recompute) {
    seconds.backward += list_seconds(model, stage, recomputed_operators(forward), counts, machine);
  }
  return seconds;
}

}  // namespace

bool layers_are_alike(const ModelConfig& model, const std::vector<AdapterShape>& adapters) {
  using Site = std::tuple<int32_t, int, int, int64_t, int64_t>;
  std::map<int64_t, std::vector<Site>> by_layer;
  for (const AdapterShape& each : adapters) {
    by_layer[each.layer].emplace_back(each.job, static_cast<int>(each.method), static_cast<int>(each.projection), each.width,
                                      each.entries);
  }
  if (static_cast<int64_t>(by_layer.size()) != model.layer_count) return false;
  return std::all_of(by_layer.begin(), by_layer.end(),
                     [&](const auto& layer) { return layer.second == by_layer.begin()->second; });
}

StageOfLayers stage_of_layers(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                              int64_t count) {
  StageOfLayers part{.model = model, .stage = stage, .adapters = {}};
  if (stage.last_layer == model.layer_count) part.model.layer_count = stage.first_layer + count;
  part.stage.last_layer = stage.first_layer + count;
  for (const AdapterShape& each : adapters) {
    // One adapted layer below the stage says as much as all of them.
    if (each.layer < part.stage.last_layer && (each.layer >= stage.first_layer || each.layer == 0)) {
      part.adapters.push_back(each);
    }
  }
  return part;
}

double operator_seconds(const ModelConfig& model, const StageShape& stage, const Operator& op, const MicrobatchCounts& counts,
                        const StageMachine& machine) {
  double seconds = 0;
  if (op.communicates) {
    const double bytes = static_cast<double>(counts.tokens * model.hidden_size * machine.element_size());
    seconds += all_reduce_seconds(bytes, stage.tensor_parallel, machine.link);
  }
  if (machine.measured != nullptr) return seconds + machine.measured->operator_seconds(model, stage, op, counts);
  Operator bare = op;
  bare.adapters.clear();
  const OperatorCost base = operator_cost(model, stage, bare, counts, machine.element_size());
  const bool is_empty = base.flops == 0 && base.bytes_moved == 0;
  if (!is_empty) seconds += operator_seconds(base, std::max<int64_t>(1, base.frozen_calls), machine);
  if (!op.adapters.empty()) seconds += fused_adapter_seconds(model, stage, op, counts, machine, base);
  return seconds;
}

double list_seconds(const ModelConfig& model, const StageShape& stage, const std::vector<Operator>& operators,
                    const MicrobatchCounts& counts, const StageMachine& machine) {
  double seconds = 0;
  for (const Operator& op : operators) seconds += operator_seconds(model, stage, op, counts, machine);
  return seconds;
}

StageSeconds stage_seconds(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                           const MicrobatchCounts& counts, const StageMachine& machine) {
  const int64_t layers = stage.last_layer - stage.first_layer;
  if (layers <= 3 || !layers_are_alike(model, adapters)) return full_seconds(model, stage, adapters, counts, machine);
  const auto of_layers = [&](int64_t count) {
    const StageOfLayers part = stage_of_layers(model, stage, adapters, count);
    return full_seconds(part.model, part.stage, part.adapters, counts, machine);
  };
  const StageSeconds two = of_layers(2), three = of_layers(3);
  const auto extrapolated = [layers](double at_two, double at_three) {
    return at_two + static_cast<double>(layers - 2) * (at_three - at_two);
  };
  return {extrapolated(two.forward, three.forward), extrapolated(two.backward, three.backward)};
}

MicrobatchCounts even_microbatch(int64_t rows, int64_t tokens, const std::vector<double>& shares) {
  MicrobatchCounts counts{.tokens = rows * tokens,
                          .labelled = rows * tokens,
                          .attention_pairs = rows * tokens * (tokens + 1) / 2,
                          .row_parts = rows};
  double before = 0;
  int64_t given = 0;
  for (const double share : shares) {
    before += share;
    const int64_t end = std::min(counts.tokens, static_cast<int64_t>(std::llround(before * static_cast<double>(counts.tokens))));
    counts.job_tokens.push_back(end - given);
    given = end;
  }
  if (!counts.job_tokens.empty()) counts.job_tokens.back() += counts.tokens - given;
  for (const int64_t of_job : counts.job_tokens) counts.job_atoms.push_back((of_job + atom_tokens - 1) / atom_tokens);
  return counts;
}

}  // namespace cotune
