#include "plan/cost/overlapped_stage.h"

#include <algorithm>

#include "base/error.h"
#include "schedule/stage/launch_order.h"

namespace cotune {
namespace {

constexpr size_t most_at_once = 4;

double clock_seconds(const std::vector<SubgraphDag>& dags, const StreamRates& rates) {
  return dags.empty() ? 0 : choose_launch_order(dags, rates).overlap.makespan_s;
}

StageSeconds clock_of(std::span<const PricedClockTask> tasks, PricedStage::ClockLayers layers) {
  std::vector<SubgraphDag> forward, again, backward;
  for (const PricedClockTask& task : tasks) {
    PricedStage::ClockGraphs graphs = task.stage->clock_graphs(*task.counts, layers, task.has_backward);
    const auto add = [](std::vector<SubgraphDag>& all, SubgraphDag& own) {
      if (!own.empty()) all.push_back(std::move(own));
    };
    add(forward, graphs.forward);
    add(again, graphs.again);
    add(backward, graphs.backward);
  }
  const StreamRates rates = stream_rates(tasks.front().stage->machine());
  return {clock_seconds(forward, rates), clock_seconds(again, rates) + clock_seconds(backward, rates)};
}

StageSeconds clock_of(std::span<const PricedClockTask> tasks) {
  using Layers = PricedStage::ClockLayers;
  const PricedStage& first = *tasks.front().stage;
  const StageShape& shape = first.shape();
  const int64_t all = shape.last_layer - shape.first_layer;
  const int64_t few_layers = first.clock_layers(Layers::few), more_layers = first.clock_layers(Layers::more);
  for (const PricedClockTask& task : tasks) COTUNE_CHECK(task.stage->clock_layers(Layers::few) == few_layers);
  const StageSeconds few = clock_of(tasks, Layers::few);
  if (few_layers == all) return few;
  const StageSeconds more = clock_of(tasks, Layers::more);
  const double times = static_cast<double>(all - few_layers) / static_cast<double>(more_layers - few_layers);
  return {few.forward + times * (more.forward - few.forward), few.backward + times * (more.backward - few.backward)};
}

}  // namespace

StreamRates stream_rates(const StageMachine& machine) {
  return {.communication_share = machine.device.communication_share};
}

StageSeconds overlapped_seconds(const ModelConfig& model, const StageShape& stage, std::span<const ClockTask> tasks,
                                const StageMachine& machine) {
  std::vector<PricedStage> stages;
  std::vector<PricedClockTask> priced;
  stages.reserve(tasks.size());
  const bool all_alike = std::all_of(tasks.begin(), tasks.end(), [&](const ClockTask& task) {
    return layers_are_alike(model, *task.adapters);
  });
  for (const ClockTask& task : tasks) {
    stages.emplace_back(model, stage, *task.adapters, machine, all_alike ? LayerPricing::alike : LayerPricing::each);
    priced.push_back({&stages.back(), task.counts, task.has_backward});
  }
  return overlapped_seconds(priced);
}

StageSeconds overlapped_seconds(std::span<const PricedClockTask> tasks) {
  StageSeconds sum;
  if (tasks.empty()) return sum;
  if (!has_clocks(tasks.front().stage->shape())) {
    for (const PricedClockTask& task : tasks) {
      const StageSeconds own = task.stage->seconds(*task.counts);
      sum.forward += own.forward;
      if (task.has_backward) sum.backward += own.backward;
    }
    return sum;
  }
  for (size_t first = 0; first < tasks.size(); first += most_at_once) {
    const StageSeconds own = clock_of(tasks.subspan(first, std::min(most_at_once, tasks.size() - first)));
    sum.forward += own.forward;
    sum.backward += own.backward;
  }
  return sum;
}

StageSeconds overlapped_seconds(StagePrices& prices, const StageShape& stage, size_t index, std::span<const ClockMicrobatch> microbatches) {
  const bool every_layer = !std::all_of(microbatches.begin(), microbatches.end(),
                                        [&](const ClockMicrobatch& each) { return prices.layers_are_alike(each.jobs_number); });
  std::vector<PricedClockTask> clock;
  for (const ClockMicrobatch& each : microbatches) {
    clock.push_back({&prices.at(stage, each.jobs_number, every_layer), each.counts, static_cast<size_t>(each.lowest_stage) <= index});
  }
  return overlapped_seconds(clock);
}

}  // namespace cotune
