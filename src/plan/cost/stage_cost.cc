#include "plan/cost/stage_cost.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "plan/cost/priced_stage.h"
#include "schedule/operator_cost.h"

namespace cotune {

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

OperatorParts::OperatorParts(const Operator& op) : whole(op), bare(op) {
  bare.adapters.clear();
  for (const AdapterShape& adapter : op.adapters) {
    // The adapters of one job at this operator stand together.
    if (of_jobs.empty() || of_jobs.back().adapters.front().job != adapter.job) of_jobs.push_back(bare);
    of_jobs.back().adapters.push_back(adapter);
  }
}

double OperatorParts::seconds(const ModelConfig& model, const StageShape& stage, const MicrobatchCounts& counts,
                              const StageMachine& machine) const {
  if (machine.measured != nullptr) return machine.measured->operator_seconds(model, stage, whole, counts);
  const OperatorCost base = operator_cost(model, stage, bare, counts, machine.element_size());
  const bool is_empty = base.flops == 0 && base.bytes_moved == 0;
  double slowest = 0, work = 0;
  for (const Operator& own : of_jobs) {
    const auto job = static_cast<size_t>(own.adapters.front().job);
    if (job >= counts.job_tokens.size() || counts.job_tokens[job] == 0) continue;
    const OperatorCost cost = adapter_cost(model, stage, own, counts, machine.element_size());
    if (cost.adapter_calls == 0) continue;
    slowest = std::max(slowest, operator_seconds(cost, cost.adapter_calls, machine));
    work += work_seconds(cost, machine);
  }
  return (is_empty ? 0 : operator_seconds(base, std::max<int64_t>(1, base.frozen_calls), machine)) + std::max(slowest, work);
}

double operator_seconds(const ModelConfig& model, const StageShape& stage, const Operator& op, const MicrobatchCounts& counts,
                        const StageMachine& machine) {
  return OperatorParts(op).seconds(model, stage, counts, machine) + collective_seconds(model, stage, op, counts.tokens, machine);
}

double list_seconds(const ModelConfig& model, const StageShape& stage, const std::vector<Operator>& operators,
                    const MicrobatchCounts& counts, const StageMachine& machine) {
  double seconds = 0;
  for (const Operator& op : operators) seconds += operator_seconds(model, stage, op, counts, machine);
  return seconds;
}

StageSeconds stage_seconds(const ModelConfig& model, const StageShape& stage, const std::vector<AdapterShape>& adapters,
                           const MicrobatchCounts& counts, const StageMachine& machine) {
  return PricedStage(model, stage, adapters, machine).seconds(counts);
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
