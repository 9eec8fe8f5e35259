#include "cluster/kind_costs.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "base/error.h"
#include "plan/cost/stage_memory.h"
#include "schedule/operator_cost.h"

namespace cotune {
namespace {

uint32_t bit(Projection projection) { return 1u << static_cast<int>(projection); }

/// Operators that cost the same.
using OperatorClass = std::tuple<int, bool, bool, bool>;
OperatorClass class_of(const Operator& op) {
  return {static_cast<int>(op.kind), op.communicates, op.without_input_gradient, !op.adapters.empty()};
}

MicrobatchCounts counts_of(int64_t tokens, int64_t labelled, int64_t pairs) {
  return {.tokens = tokens, .labelled = labelled, .attention_pairs = pairs, .job_tokens = {tokens}};
}

}  // namespace

KindCosts::KindCosts(const InstanceSpec& instance, const std::vector<JobKind>& kinds) : instance_(instance), kinds_(kinds) {
  const OperatorCost one_flop{.flops = 1}, one_byte{.bytes_moved = 1};
  flop_s_ = work_seconds(one_flop, instance.machine);
  byte_s_ = work_seconds(one_byte, instance.machine);
  for (const JobKind& kind : kinds) {
    if (kind.tokens > instance.model.context_length) {
      throw_user_error("a job of kind {}: rows of {} tokens exceed the model's context of {}", kind.name(), kind.tokens,
                       instance.model.context_length);
    }
    uint32_t projections = 0;
    for (const AdapterShape& adapter : adapter_shapes(kind, 0, instance.model)) projections |= bit(adapter.projection);
    projections_.push_back(projections);
  }
  // Every union of the kinds' projections that a mix can have.
  std::vector<uint32_t> unions;
  for (const uint32_t each : projections_) {
    const std::vector<uint32_t> before = unions;
    unions.push_back(each);
    for (const uint32_t other : before) unions.push_back(each | other);
    std::sort(unions.begin(), unions.end());
    unions.erase(std::unique(unions.begin(), unions.end()), unions.end());
  }
  for (const StageShape& shape : even_stages(instance.model, instance.pipeline_stages, instance.tensor_parallel)) {
    const auto alike = [&](const Stage& other) {
      return other.shape.last_layer - other.shape.first_layer == shape.last_layer - shape.first_layer &&
             other.shape.has_embedding == shape.has_embedding && other.shape.has_head == shape.has_head;
    };
    const auto place = std::find_if(stages_.begin(), stages_.end(), alike);
    stage_of_.push_back(static_cast<size_t>(place - stages_.begin()));
    if (place != stages_.end()) continue;
    Stage& stage = stages_.emplace_back();
    stage.shape = shape;
    for (const uint32_t each : unions) {
      stage.lists[each] = {stage_list(shape, each, Direction::forward), stage_list(shape, each, Direction::backward)};
    }
  }
  find_memory();
}

int64_t KindCosts::microbatch_tokens(int32_t kind) const {
  const JobKind& job = kinds_[static_cast<size_t>(kind)];
  return (job.step_tokens() + instance_.microbatches - 1) / instance_.microbatches;
}

KindCosts::Part KindCosts::part_of(int32_t kind, int64_t row_tokens) const {
  const JobKind& job = kinds_[static_cast<size_t>(kind)];
  const auto count = static_cast<double>(instance_.microbatches);
  const double rows = static_cast<double>(job.rows) / count;
  return {.tokens = std::ceil(rows * static_cast<double>(row_tokens) - 1e-9),
          .pairs = rows * static_cast<double>(row_tokens) * static_cast<double>(row_tokens + 1) / 2,
          .most_tokens = std::ceil(rows) * static_cast<double>(row_tokens)};
}

KindCosts::AffineCost KindCosts::affine(const StageShape& stage, const Operator& op) const {
  const auto cost = [&](int64_t tokens, int64_t pairs) {
    return operator_cost(instance_.model, stage, op, counts_of(tokens, tokens, pairs), instance_.machine.element_size());
  };
  constexpr int64_t step = 4096;
  const OperatorCost none = cost(0, 0), tokens = cost(step, 0), pairs = cost(0, step);
  const auto slopes = [&](auto value) {
    const auto slope = [&](const OperatorCost& at) { return (value(at) - value(none)) / static_cast<double>(step); };
    return std::array<double, 3>{value(none), slope(tokens), slope(pairs)};
  };
  return {slopes([](const OperatorCost& at) { return at.flops; }), slopes([](const OperatorCost& at) { return at.bytes_moved; }), 0};
}

std::vector<KindCosts::StageOperator> KindCosts::stage_list(const StageShape& stage, uint32_t projections,
                                                            Direction direction) const {
  // Which operators there are depends on where adapters sit, not on what they are.
  std::vector<AdapterShape> adapters;
  for (int64_t layer = 0; layer < instance_.model.layer_count; ++layer) {
    for (const Projection projection : all_projections) {
      if ((projections & bit(projection)) != 0) adapters.push_back({0, AdapterMethod::lora, layer, projection, 8, 0});
    }
  }
  std::map<OperatorClass, size_t> places;
  std::vector<StageOperator> list;
  for (const Operator& op : stage_operators(instance_.model, stage, adapters, direction)) {
    const auto [place, is_new] = places.try_emplace(class_of(op), list.size());
    if (is_new) {
      StageOperator& each = list.emplace_back();
      Operator bare = op;
      bare.adapters.clear();
      each.base = affine(stage, bare);
      const OperatorCost some = operator_cost(instance_.model, stage, bare, counts_of(64, 64, 64), instance_.machine.element_size());
      each.has_base = some.flops != 0 || some.bytes_moved != 0;
      each.base.launch_s = static_cast<double>(std::max<int64_t>(1, some.frozen_calls)) * instance_.machine.device.launch_seconds;
      each.communicates = op.communicates;
      if (!op.adapters.empty()) {
        std::vector<Projection> here;
        for (const AdapterShape& adapter : op.adapters) here.push_back(adapter.projection);
        for (const JobKind& kind : kinds_) {
          Operator adapted = bare;
          for (const AdapterShape& adapter : adapter_shapes(kind, 0, instance_.model)) {
            if (adapter.layer == op.layer && std::count(here.begin(), here.end(), adapter.projection) > 0) {
              adapted.adapters.push_back(adapter);
            }
          }
          AffineCost cost = affine(stage, adapted);
          for (size_t i = 0; i < cost.flops.size(); ++i) {
            cost.flops[i] -= each.base.flops[i];
            cost.bytes[i] -= each.base.bytes[i];
          }
          const OperatorCost calls =
              operator_cost(instance_.model, stage, adapted, counts_of(64, 64, 64), instance_.machine.element_size());
          const int64_t added = calls.adapter_calls;
          cost.launch_s = static_cast<double>(added) * instance_.machine.device.launch_seconds;
          each.adapter.push_back(cost);
          each.adapts.push_back(added > 0);
        }
      }
    }
    list[place->second].times += 1;
  }
  return list;
}

double KindCosts::seconds(const AffineCost& cost, double tokens, double pairs) const {
  const double flops = cost.flops[0] + cost.flops[1] * tokens + cost.flops[2] * pairs;
  const double bytes = cost.bytes[0] + cost.bytes[1] * tokens + cost.bytes[2] * pairs;
  return std::max(flops * flop_s_, bytes * byte_s_);
}

double KindCosts::list_seconds(const std::vector<StageOperator>& list, std::span<const std::pair<int32_t, int32_t>> counts,
                               std::span<const Part> parts, const Part& sum) const {
  double total = 0;
  for (const StageOperator& op : list) {
    double here = 0;
    if (op.has_base) here += std::max(op.base.launch_s, seconds(op.base, sum.tokens, sum.pairs));
    if (!op.adapter.empty()) {
      double slowest = 0, work = 0;
      for (size_t i = 0; i < counts.size(); ++i) {
        const auto kind = static_cast<size_t>(counts[i].first);
        if (!op.adapts[kind]) continue;
        const AffineCost& cost = op.adapter[kind];
        const double full_use = seconds(cost, parts[i].tokens, 0);
        slowest = std::max(slowest, std::max(full_use, cost.launch_s));
        work += counts[i].second * full_use;
      }
      here += std::max(slowest, work);
    }
    if (op.communicates) {
      const int64_t token_bytes = instance_.model.hidden_size * accumulation_bytes(instance_.machine.element_size());
      here += all_reduce_seconds(sum.tokens * static_cast<double>(token_bytes), instance_.tensor_parallel, instance_.machine.link);
    }
    total += op.times * here;
  }
  return total;
}

FusedCost KindCosts::fused(std::span<const int32_t> kinds) const {
  const JobMix mix(std::vector<int32_t>(kinds.begin(), kinds.end()));
  int64_t longest = 0;
  for (const auto& [kind, count] : mix.counts()) longest = std::max(longest, kinds_[static_cast<size_t>(kind)].tokens);
  std::vector<Part> parts;
  Part sum;
  uint32_t projections = 0;
  for (const auto& [kind, count] : mix.counts()) {
    const int64_t row = instance_.layout == Layout::padded ? longest : kinds_[static_cast<size_t>(kind)].tokens;
    const Part part = parts.emplace_back(part_of(kind, row));
    sum.tokens += count * part.tokens;
    sum.pairs += count * part.pairs;
    sum.most_tokens += count * part.most_tokens;
    projections |= projections_[static_cast<size_t>(kind)];
  }
  struct Found {
    StageCost cost;
    int64_t workspace = 0;
  };
  std::vector<Found> found;
  for (const Stage& stage : stages_) {
    const Direct& lists = stage.lists.at(projections);
    Found& each = found.emplace_back();
    each.cost.forward_s = list_seconds(lists.forward, mix.counts(), parts, sum);
    each.cost.backward_s = list_seconds(lists.backward, mix.counts(), parts, sum);
    double kept = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto& [kind, count] = mix.counts()[i];
      kept += count * std::ceil(parts[i].most_tokens * stage.kept_per_token[static_cast<size_t>(kind)]);
    }
    each.cost.kept_bytes = static_cast<int64_t>(kept);
    const double logits = std::min(sum.most_tokens, static_cast<double>(logit_rows)) / static_cast<double>(logit_rows);
    each.workspace = static_cast<int64_t>(sum.most_tokens * stage.workspace_per_token + logits * stage.workspace_fixed);
  }
  FusedCost cost;
  cost.message_bytes = static_cast<int64_t>(sum.tokens) * token_bytes(instance_.model.hidden_size, instance_.machine.element_size());
  for (const size_t stage : stage_of_) {
    cost.stages.push_back(found[stage].cost);
    cost.workspace_bytes.push_back(found[stage].workspace);
  }
  return cost;
}

void KindCosts::find_memory() {
  const ModelConfig& model = instance_.model;
  const int64_t element = instance_.machine.element_size();
  constexpr int64_t some = 1024;
  memory_.padded = instance_.layout == Layout::padded;
  for (const JobKind& kind : kinds_) memory_.kinds.push_back({.row_tokens = kind.tokens});
  for (Stage& stage : stages_) {
    const StageMemory bare = stage_memory(model, stage.shape, {}, 0, counts_of(some, 0, 0), 1, element);
    const StageMemory labelled = stage_memory(model, stage.shape, {}, 0, counts_of(some, logit_rows, 0), 1, element);
    stage.workspace_per_token = static_cast<double>(bare.workspace) / static_cast<double>(some);
    stage.workspace_fixed = static_cast<double>(labelled.workspace - bare.workspace);
    for (const JobKind& kind : kinds_) {
      const StageMemory kept = stage_memory(model, stage.shape, adapter_shapes(kind, 0, model), 2, counts_of(some, 0, 0), 1, element);
      stage.kept_per_token.push_back(static_cast<double>(kept.activations) / static_cast<double>(some));
    }
  }
  const std::vector<StageShape> shapes = even_stages(model, instance_.pipeline_stages, instance_.tensor_parallel);
  for (size_t s = 0; s < shapes.size(); ++s) {
    const Stage& stage = stages_[stage_of_[s]];
    memory_.limit_bytes.push_back(instance_.memory_bytes);
    const int64_t weights = stage_memory(model, shapes[s], {}, 0, counts_of(0, 0, 0), 0, element).weights;
    weight_bytes_.push_back(weights);
    memory_.fixed_bytes.push_back(weights + static_cast<int64_t>(std::ceil(stage.workspace_fixed)));
    const auto in_flight = static_cast<double>(shapes.size() - s);
    for (size_t k = 0; k < kinds_.size(); ++k) {
      const StageMemory job = stage_memory(model, shapes[s], adapter_shapes(kinds_[k], 0, model), 2, counts_of(0, 0, 0), 0, element);
      const double tokens = part_of(static_cast<int32_t>(k), kinds_[k].tokens).most_tokens;
      memory_.kinds[k].resident_bytes.push_back(job.adapters);
      memory_.kinds[k].activation_bytes.push_back(
          static_cast<int64_t>(in_flight * std::ceil(tokens * stage.kept_per_token[k]) + std::ceil(tokens * stage.workspace_per_token)));
    }
  }
}

}  // namespace cotune
