#include "plan/cost/roofline_profile.h"

#include "plan/cost/stage_cost.h"
#include "schedule/profile_grid.h"
#include "schedule/resident_memory.h"
#include "schedule/step_operators.h"

namespace cotune {
namespace {

struct Sum {
  double seconds = 0;
  int64_t calls = 0;
};

/// By profile_key: all calls of one round.
std::map<std::string, Sum> round_sums(const ModelConfig& model, const PlannedStep& step, const StageMachine& machine) {
  const StageShape stage{.last_layer = model.layer_count};
  const StepOperators operators(model, step);
  std::map<std::string, Sum> sums;
  for (const Action& action : step.plan.actions) {
    for (const Operator* op : operators.of(action)) {
      Sum& sum = sums[profile_key(*op)];
      sum.seconds += operator_seconds(model, stage, *op, operators.counts(action.microbatch), machine);
      sum.calls += 1;
    }
  }
  const int64_t values = parameter_count(model, step.adapters);
  sums[round_key] = {optimizer_seconds(values, 2, machine.device), 1};
  return sums;
}

}  // namespace

Profile roofline_profile(const ModelConfig& model, const DeviceSpec& device, const std::string& dtype) {
  Profile profile{.fingerprint = {.device = device.name.empty() ? "device" : device.name,
                                  .kernels = roofline_kernels,
                                  .libraries = "data sheet",
                                  .model = model_shape_text(model),
                                  .dtype = dtype},
                  .layer_count = model.layer_count,
                  .shapes = canonical_shapes(model.context_length)};
  StageMachine machine;
  machine.device = device;
  machine.dtype = dtype;
  for (size_t s = 0; s < profile.shapes.size(); ++s) {
    for (const auto& [key, sum] : round_sums(model, planned_step(model, profile.shapes[s]), machine)) {
      profile.operators[key].push_back({.shape = static_cast<int64_t>(s),
                                        .calls = sum.calls,
                                        .median = sum.seconds / static_cast<double>(sum.calls),
                                        .spread = 0,
                                        .count = 1});
    }
  }
  return profile;
}

}  // namespace cotune
