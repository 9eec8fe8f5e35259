#include "plan/cost/roofline_profile.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "plan/cost/stage_cost.h"
#include "schedule/adapter_shape.h"
#include "schedule/profile_grid.h"
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

/// One microbatch each, as large as planning makes them; of every projection with an adapter and without.
std::vector<ProfiledShape> large_shapes(int64_t context_length) {
  const std::vector<Projection> everywhere(all_projections.begin(), all_projections.end());
  const std::vector<Projection> query_and_value = {Projection::q, Projection::v}, feed_forward = {Projection::gate, Projection::up, Projection::down};
  const ProfiledJob jobs[] = {
      {.method = AdapterMethod::lora, .width = 8, .projections = everywhere},
      {.method = AdapterMethod::lora, .width = 64, .projections = everywhere},
      {.method = AdapterMethod::lora, .width = 16, .projections = query_and_value},
      {.method = AdapterMethod::lora, .width = 16, .projections = feed_forward},
      {.method = AdapterMethod::bottleneck, .width = 64, .projections = {Projection::o, Projection::down}},
      {.method = AdapterMethod::diff_pruning, .density = 0.005, .projections = everywhere},
  };
  std::vector<ProfiledShape> shapes;
  for (const int64_t tokens : {2048, 8192}) {
    for (const int64_t length : {std::min<int64_t>(512, context_length), std::min(tokens, context_length)}) {
      for (ProfiledJob job : jobs) {
        job.row_lengths.assign(static_cast<size_t>(tokens / length), length);
        shapes.push_back({.jobs = {std::move(job)}, .token_budget = tokens});
      }
    }
  }
  return shapes;
}

/// Many of them as large as planning makes microbatches: small ones, which a launch or the weights bound, say little of the slope.
std::vector<ProfiledShape> shapes_of(int64_t context_length) {
  std::vector<ProfiledShape> shapes = canonical_shapes(context_length);
  std::ranges::move(large_shapes(context_length), std::back_inserter(shapes));
  return shapes;
}

}  // namespace

Profile roofline_profile(const ModelConfig& model, const DeviceSpec& device, const std::string& dtype) {
  Profile profile{.fingerprint = {.device = device.name.empty() ? "device" : device.name,
                                  .kernels = roofline_kernels,
                                  .libraries = "data sheet",
                                  .model = model_shape_text(model),
                                  .dtype = dtype},
                  .layer_count = model.layer_count,
                  .shapes = shapes_of(model.context_length)};
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
