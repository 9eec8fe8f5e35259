#include "plan/cost/overlapped_stage.h"

#include <algorithm>

#include "plan/cost/recomputation.h"
#include "schedule/stage/launch_order.h"

namespace cotune {
namespace {

constexpr size_t most_at_once = 4;
constexpr int64_t few_layers = 3, more_layers = 5;

SubgraphDag dag_of(const ModelConfig& model, const StageShape& stage, const std::vector<Operator>& operators,
                   const MicrobatchCounts& counts, const StageMachine& machine) {
  const double all_reduce_s = all_reduce_seconds(
      static_cast<double>(counts.tokens * model.hidden_size * machine.element_size()), stage.tensor_parallel, machine.link);
  std::vector<OperatorTime> times;
  std::vector<Operator> alone(1);
  for (const Operator& op : operators) {
    alone.front() = op;
    alone.front().communicates = false;
    times.push_back({list_seconds(model, stage, alone, counts, machine), op.communicates ? all_reduce_s : 0});
  }
  return subgraphs_of(operators, times);
}

/// The list with only those operators, and predecessors among them.
std::vector<Operator> without_others(const std::vector<Operator>& kept, const std::vector<Operator>& all) {
  std::vector<int32_t> place(all.size(), -1);
  std::vector<Operator> list;
  size_t next = 0;
  for (size_t i = 0; i < all.size() && next < kept.size(); ++i) {
    if (all[i].kind != kept[next].kind || all[i].layer != kept[next].layer) continue;
    place[i] = static_cast<int32_t>(next);
    Operator& op = list.emplace_back(kept[next++]);
    std::vector<int32_t> before;
    for (const int32_t other : op.predecessors) {
      if (place[static_cast<size_t>(other)] >= 0) before.push_back(place[static_cast<size_t>(other)]);
    }
    op.predecessors = std::move(before);
  }
  return list;
}

double clock_seconds(const std::vector<SubgraphDag>& dags, const StreamRates& rates) {
  return dags.empty() ? 0 : choose_launch_order(dags, rates).overlap.makespan_s;
}

struct TaskOfLayers {
  StageOfLayers part;
  const ClockTask* task;
};

StageSeconds full_clock(const std::vector<TaskOfLayers>& tasks, const StageMachine& machine) {
  std::vector<SubgraphDag> forward, again, backward;
  for (const auto& [part, task] : tasks) {
    const auto list = [&](Direction direction) { return stage_operators(part.model, part.stage, part.adapters, direction); };
    const auto add = [&](std::vector<SubgraphDag>& dags, const std::vector<Operator>& operators) {
      if (!operators.empty()) dags.push_back(dag_of(part.model, part.stage, operators, *task->counts, machine));
    };
    const std::vector<Operator> forwards = list(Direction::forward);
    add(forward, forwards);
    if (!task->has_backward) continue;
    if (machine.recompute) add(again, without_others(recomputed_operators(forwards), forwards));
    add(backward, list(Direction::backward));
  }
  const StreamRates rates = stream_rates(machine);
  return {clock_seconds(forward, rates), clock_seconds(again, rates) + clock_seconds(backward, rates)};
}

StageSeconds clock_of(const ModelConfig& model, const StageShape& stage, std::span<const ClockTask> tasks,
                      const StageMachine& machine) {
  const int64_t layers = stage.last_layer - stage.first_layer;
  const bool is_short = layers <= more_layers || !std::all_of(tasks.begin(), tasks.end(), [&](const ClockTask& task) {
    return layers_are_alike(model, *task.adapters);
  });
  const auto of_layers = [&](int64_t count) {
    std::vector<TaskOfLayers> parts;
    for (const ClockTask& task : tasks) {
      parts.push_back({is_short ? StageOfLayers{model, stage, *task.adapters}
                                : stage_of_layers(model, stage, *task.adapters, count),
                       &task});
    }
    return full_clock(parts, machine);
  };
  if (is_short) return of_layers(layers);
  const StageSeconds few = of_layers(few_layers), more = of_layers(more_layers);
  const double times = static_cast<double>(layers - few_layers) / static_cast<double>(more_layers - few_layers);
  return {few.forward + times * (more.forward - few.forward), few.backward + times * (more.backward - few.backward)};
}

}  // namespace

StreamRates stream_rates(const StageMachine& machine) {
  return {.communication_share = machine.device.communication_share};
}

StageSeconds overlapped_seconds(const ModelConfig& model, const StageShape& stage, std::span<const ClockTask> tasks,
                                const StageMachine& machine) {
  StageSeconds sum;
  if (stage.tensor_parallel == 1) {
    for (const ClockTask& task : tasks) {
      const StageSeconds own = stage_seconds(model, stage, *task.adapters, *task.counts, machine);
      sum.forward += own.forward;
      if (task.has_backward) sum.backward += own.backward;
    }
    return sum;
  }
  for (size_t first = 0; first < tasks.size(); first += most_at_once) {
    const StageSeconds own =
        clock_of(model, stage, tasks.subspan(first, std::min(most_at_once, tasks.size() - first)), machine);
    sum.forward += own.forward;
    sum.backward += own.backward;
  }
  return sum;
}

}  // namespace cotune
