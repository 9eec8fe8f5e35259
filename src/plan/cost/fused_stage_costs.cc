#include "plan/cost/fused_stage_costs.h"

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "plan/cost/recomputation.h"
#include "schedule/operator_cost.h"

namespace cotune {
namespace {

/// Where in a layer's backward an adapter comes last: later ones go further down.
int place_of(Projection projection) {
  switch (projection) {
    case Projection::q:
    case Projection::k:
    case Projection::v:
      return 0;
    case Projection::o:
      return 1;
    case Projection::gate:
    case Projection::up:
      return 2;
    case Projection::down:
      return 3;
  }
  return 0;
}

/// The same projection for every place, for an adapter that stands for those of other layers.
Projection projection_at(int place) {
  constexpr Projection projections[] = {Projection::q, Projection::o, Projection::up, Projection::down};
  return projections[place];
}

bool is_adapter_gradient(OperatorKind kind) {
  return kind == OperatorKind::qkv_adapter_gradient || kind == OperatorKind::o_adapter_gradient ||
         kind == OperatorKind::gate_up_adapter_gradient || kind == OperatorKind::down_adapter_gradient;
}

/// What an operator costs without adapters depends on its kind, the sharding, and whether it makes an input gradient.
size_t base_of(const Operator& op, const StageShape& shape, std::vector<std::pair<Operator, StageShape>>& bases) {
  const auto found = std::find_if(bases.begin(), bases.end(), [&](const auto& base) {
    return base.first.kind == op.kind && base.first.without_input_gradient == op.without_input_gradient &&
           base.first.communicates == op.communicates && base.second.tensor_parallel == shape.tensor_parallel;
  });
  if (found != bases.end()) return static_cast<size_t>(found - bases.begin());
  bases.emplace_back(op, shape);
  bases.back().first.adapters.clear();
  return bases.size() - 1;
}

}  // namespace

FusedStageCosts::FusedStageCosts(ModelConfig model, std::vector<StageShape> stages, StageMachine machine,
                                 std::vector<std::vector<AdapterShape>> adapters, std::span<const int64_t> tokens)
    : model_(std::move(model)),
      stages_(std::move(stages)),
      machine_(std::move(machine)),
      adapters_(std::move(adapters)),
      tokens_(tokens.begin(), tokens.end()) {
  using Site = std::tuple<int32_t, int, int, int64_t, int64_t>;
  std::vector<std::vector<Site>> sites(static_cast<size_t>(model_.layer_count));
  for (size_t job = 0; job < adapters_.size(); ++job) {
    COTUNE_CHECK(!adapters_[job].empty(), "job {} has no adapter", job);
    Place lowest{model_.layer_count, 0};
    for (AdapterShape& adapter : adapters_[job]) {
      adapter.job = static_cast<int32_t>(job);
      lowest = std::min(lowest, {adapter.layer, place_of(adapter.projection)});
      sites[static_cast<size_t>(adapter.layer)].emplace_back(adapter.job, static_cast<int>(adapter.method),
                                                             static_cast<int>(adapter.projection), adapter.width,
                                                             adapter.entries);
    }
    lowest_.push_back(lowest);
  }
  std::map<std::vector<Site>, int64_t> kinds;
  for (const std::vector<Site>& layer : sites) {
    layer_kind_.push_back(kinds.emplace(layer, static_cast<int64_t>(kinds.size())).first->second);
  }
  for (const Place& lowest : lowest_) {
    if (lists_.count(lowest) == 0) lists_[lowest] = lists_from(lowest);
  }
}

FusedStageCosts::Lists FusedStageCosts::lists_from(Place lowest) const {
  Lists lists;
  // Below, at or above the lowest adapted layer; embedding; head; tensor parallelism; adapters.
  using Key = std::tuple<int, bool, bool, int64_t, int64_t>;
  std::map<Key, size_t> known;
  for (const StageShape& stage : stages_) {
    std::map<size_t, int64_t> counts;
    for (int64_t l = stage.first_layer; l < stage.last_layer; ++l) {
      const StageShape shape{l, l + 1, stage.has_embedding && l == stage.first_layer,
                             stage.has_head && l + 1 == stage.last_layer, stage.tensor_parallel};
      const int side = l < lowest.first ? -1 : l == lowest.first ? 0 : 1;
      const Key key{side, shape.has_embedding, shape.has_head, shape.tensor_parallel, layer_kind_[static_cast<size_t>(l)]};
      const auto [found, is_new] = known.emplace(key, lists.layers.size());
      if (is_new) lists.layers.push_back(layer_of(shape, lowest, lists));
      ++counts[found->second];
    }
    lists.of_stage.emplace_back(counts.begin(), counts.end());
  }
  return lists;
}

FusedStageCosts::Layer FusedStageCosts::layer_of(const StageShape& shape, Place lowest, Lists& lists) const {
  const int64_t element = machine_.element_size();
  std::vector<AdapterShape> here;
  for (size_t job = 0; job < adapters_.size(); ++job) {
    if (lowest_[job] < lowest) continue;  // never in a set of these lists
    for (const AdapterShape& adapter : adapters_[job]) {
      if (adapter.layer == shape.first_layer) here.push_back(adapter);
    }
  }
  // Stands for the adapters elsewhere, which say how far down the backward goes.
  if (lowest.first != shape.first_layer) {
    here.push_back({.job = -1, .layer = lowest.first, .projection = projection_at(lowest.second)});
  }
  Layer layer{.shape = shape, .kept_bytes = std::vector<int64_t>(adapters_.size(), 0)};
  const MicrobatchCounts one_token{.tokens = 1};
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    for (Operator& op : stage_operators(model_, shape, here, direction)) {
      LayerOperator each{.base = base_of(op, shape, lists.bases),
                         .backward = direction == Direction::backward,
                         .recomputed = machine_.recompute && op.keeps && op.layer >= 0,
                         .recomputed_with_adapters = op.kind == OperatorKind::down_proj,
                         .needs_adapters = is_adapter_gradient(op.kind),
                         .has_adapters = std::vector<int32_t>(adapters_.size(), 0),
                         .adapters = std::vector<AdapterTime>(adapters_.size())};
      Operator bare = op;
      bare.adapters.clear();
      layer.kept_bytes_per_token += saved_bytes(model_, shape, bare, one_token, element);
      layer.input_bytes_per_token += kept_input_bytes(model_, shape, bare, one_token, element);
      for (size_t begin = 0; begin < op.adapters.size();) {
        Operator alone = bare;
        const int32_t job = op.adapters[begin].job;
        for (; begin < op.adapters.size() && op.adapters[begin].job == job; ++begin) {
          alone.adapters.push_back(op.adapters[begin]);
        }
        const auto j = static_cast<size_t>(job);
        MicrobatchCounts counts;
        counts.job_tokens.assign(j + 1, 0);
        counts.job_tokens[j] = tokens_[j];
        each.has_adapters[j] = 1;
        layer.kept_bytes[j] += saved_bytes(model_, shape, alone, counts, element);
        each.adapters[j] = adapter_time(shape, bare, alone, j);
      }
      layer.operators.push_back(std::move(each));
    }
  }
  return layer;
}

FusedStageCosts::AdapterTime FusedStageCosts::adapter_time(const StageShape& shape, const Operator& bare,
                                                           const Operator& alone, size_t job) const {
  MicrobatchCounts counts;
  counts.job_tokens.assign(job + 1, 0);
  counts.job_tokens[job] = tokens_[job];
  if (machine_.measured != nullptr) {
    // Measured times are sums of terms, so that the jobs' own add up.
    counts.job_atoms.assign(job + 1, 0);
    counts.job_atoms[job] = (tokens_[job] + atom_tokens - 1) / atom_tokens;
    return {0, machine_.measured->operator_seconds(model_, shape, alone, counts) -
                   machine_.measured->operator_seconds(model_, shape, bare, counts)};
  }
  const int64_t element = machine_.element_size();
  const OperatorCost base = operator_cost(model_, shape, bare, counts, element);
  OperatorCost cost = operator_cost(model_, shape, alone, counts, element);
  cost.flops -= base.flops;
  cost.bytes_moved -= base.bytes_moved;
  if (cost.adapter_calls == 0) return {};
  return {operator_seconds(cost, cost.adapter_calls, machine_), work_seconds(cost, machine_)};
}

std::vector<double> FusedStageCosts::base_seconds(const Lists& lists, const MicrobatchCounts& counts) const {
  const int64_t element = machine_.element_size();
  std::vector<double> result;
  for (const auto& [op, shape] : lists.bases) {
    double seconds = 0;
    if (machine_.measured != nullptr) {
      seconds += machine_.measured->operator_seconds(model_, shape, op, counts);
    } else {
      const OperatorCost cost = operator_cost(model_, shape, op, counts, element);
      if (cost.flops != 0 || cost.bytes_moved != 0) {
        seconds += operator_seconds(cost, std::max<int64_t>(1, cost.frozen_calls), machine_);
      }
    }
    result.push_back(seconds + collective_seconds(model_, shape, op, counts.tokens, machine_));
  }
  return result;
}

StageCost FusedStageCosts::layer_cost(const Layer& layer, std::span<const int32_t> jobs, int64_t tokens,
                                      std::span<const double> bases) const {
  StageCost sum{0, 0, tokens * layer.kept_bytes_per_token};
  for (const int32_t job : jobs) sum.kept_bytes += layer.kept_bytes[static_cast<size_t>(job)];
  for (const LayerOperator& op : layer.operators) {
    double slowest = 0, work = 0;
    bool has_adapters = false;
    for (const int32_t job : jobs) {
      const AdapterTime& time = op.adapters[static_cast<size_t>(job)];
      slowest = std::max(slowest, time.alone_s);
      work += time.work_s;
      has_adapters = has_adapters || op.has_adapters[static_cast<size_t>(job)] != 0;
    }
    if (op.needs_adapters && !has_adapters) continue;
    const double seconds = std::max(slowest, work) + bases[op.base];
    (op.backward ? sum.backward_s : sum.forward_s) += seconds;
    if (op.recomputed && (has_adapters || !op.recomputed_with_adapters)) sum.backward_s += seconds;
  }
  return sum;
}

FusedStageCosts::Costs FusedStageCosts::cost(std::span<const int32_t> jobs, const MicrobatchCounts& counts) const {
  Place lowest = lowest_[static_cast<size_t>(jobs.front())];
  for (const int32_t job : jobs) lowest = std::min(lowest, lowest_[static_cast<size_t>(job)]);
  const Lists& lists = lists_.at(lowest);
  std::vector<StageCost> layers;
  const std::vector<double> bases = base_seconds(lists, counts);
  for (const Layer& layer : lists.layers) layers.push_back(layer_cost(layer, jobs, counts.tokens, bases));
  Costs costs;
  for (const auto& parts : lists.of_stage) {
    StageCost& sum = costs.stages.emplace_back(StageCost{0, 0, 0});
    int64_t& largest = costs.layer_bytes.emplace_back(0);
    for (const auto& [layer, count] : parts) {
      sum.forward_s += static_cast<double>(count) * layers[layer].forward_s;
      sum.backward_s += static_cast<double>(count) * layers[layer].backward_s;
      if (machine_.recompute) {
        sum.kept_bytes += count * counts.tokens * lists.layers[layer].input_bytes_per_token;
        largest = std::max(largest, layers[layer].kept_bytes);
      } else {
        sum.kept_bytes += count * layers[layer].kept_bytes;
      }
    }
  }
  return costs;
}

}  // namespace cotune
