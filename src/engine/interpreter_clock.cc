// The part of the interpreter that runs several microbatches side by side.
#include <algorithm>
#include <vector>

#include "base/error.h"
#include "engine/interpreter.h"
#include "schedule/stage/subgraphs.h"

namespace cotune {
namespace {

SubgraphDag subgraphs(const std::vector<Operator>& operators) {
  return subgraphs_of(operators, std::vector<OperatorTime>(operators.size()));
}

}  // namespace

/// A microbatch of a clock, in one direction on a stage.
struct Interpreter::ClockTask {
  int32_t microbatch = 0;
  Live* live = nullptr;  ///< from its first launch on
  SubgraphDag graph;
  size_t launched = 0;
  const Operator* communicates = nullptr;  ///< the operator whose sum is under way
};

void Interpreter::run_clock(const Action& action) {
  COTUNE_CHECK(action.clock < static_cast<int32_t>(clocks_.size()), "there is no clock {}", action.clock);
  const PipelineClock& clock = clocks_[static_cast<size_t>(action.clock)];
  const StageLaunches& launches = clock.stages[static_cast<size_t>(action.stage)];
  const bool forward = action.kind == ActionKind::forward;
  std::vector<ClockTask> tasks;
  for (const int32_t microbatch : clock.microbatches) tasks.push_back({.microbatch = microbatch});
  for (const Launch& launch : forward ? launches.forward : launches.backward) {
    ClockTask& task = tasks[static_cast<size_t>(launch.task)];
    if (task.live == nullptr) begin_task(task, action.stage, forward);
    run_subgraph(task, task.graph.at(static_cast<size_t>(launch.subgraph)), action.stage, forward);
    ++task.launched;
  }
  for (ClockTask& task : tasks) {
    if (task.live != nullptr) end_task(task, action.stage, forward);
  }
}

void Interpreter::begin_task(ClockTask& task, int32_t stage, bool forward) {
  if (forward) {
    task.live = &begin_forward(task.microbatch, stage);
    task.graph = subgraphs(task.live->forward);
    return;
  }
  task.live = &live_.at({task.microbatch, stage});
  enter_backward(task.microbatch, stage, *task.live);
  task.graph = subgraphs(task.live->backward);
}

/// Adapter gradients read nothing of the sum that may be under way.
void Interpreter::run_subgraph(ClockTask& task, const Subgraph& subgraph, int32_t stage, bool forward) {
  const std::vector<Operator>& operators = forward ? task.live->forward : task.live->backward;
  if (!subgraph.is_adapter) finish_sum(task, stage);
  for (const int32_t index : subgraph.operators) {
    const Operator& op = operators[static_cast<size_t>(index)];
    if (!forward) free_layers_above(op.layer, *task.live);
    own(stage).stage.start(op, *task.live->state);
    if (task.live->state->communication && task.communicates == nullptr) {
      task.communicates = &op;
    } else {
      end_operator(op, task.microbatch, *task.live);
    }
  }
}

void Interpreter::finish_sum(ClockTask& task, int32_t stage) {
  if (task.communicates == nullptr) return;
  own(stage).stage.finish(*task.live->state);
  end_operator(*task.communicates, task.microbatch, *task.live);
  task.communicates = nullptr;
}

/// In an evaluation the operators end with a head that no launch has, for plans are of training.
void Interpreter::end_task(ClockTask& task, int32_t stage, bool forward) {
  finish_sum(task, stage);
  while (evaluating_ && task.launched < task.graph.size()) run_subgraph(task, task.graph[task.launched++], stage, forward);
  COTUNE_CHECK(task.launched == task.graph.size(), "microbatch {}: {} of {} subgraphs on stage {}", task.microbatch, task.launched,
               task.graph.size(), stage);
  if (forward) {
    end_forward(task.microbatch, stage);
  } else {
    free_layers_above(-1, *task.live);
  }
}

}  // namespace cotune
