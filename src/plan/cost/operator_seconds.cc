#include "plan/cost/operator_seconds.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "schedule/operator_cost.h"
#include "schedule/sequence_parallel.h"

namespace cotune {

double work_seconds(const OperatorCost& cost, const StageMachine& machine) {
  const DeviceSpec& device = machine.device;
  const auto rate = device.flops.find(machine.dtype);
  if (rate == device.flops.end()) {
    throw_user_error("device {}: no rate for {}", device.name.empty() ? "of the cluster file" : device.name, machine.dtype);
  }
  return std::max(cost.flops / (rate->second * device.compute_efficiency),
                  cost.bytes_moved / (device.memory_bandwidth * device.memory_efficiency));
}

double operator_seconds(const OperatorCost& cost, int64_t calls, const StageMachine& machine) {
  return std::max(work_seconds(cost, machine), static_cast<double>(calls) * machine.device.launch_seconds);
}

double optimizer_seconds(int64_t values, int64_t moment_count, const DeviceSpec& device) {
  return static_cast<double>(values * 4 * (4 + 2 * moment_count)) / (device.memory_bandwidth * device.memory_efficiency);
}

double all_reduce_seconds(double bytes, int64_t ranks, const LinkSpec& link) {
  if (ranks <= 1) return 0;
  if (const std::optional<double> measured = link.measured_seconds(CollectiveKind::all_reduce, ranks, bytes)) return *measured;
  const double steps = 2.0 * static_cast<double>(ranks - 1);
  return steps / static_cast<double>(ranks) * bytes / link.bandwidth + steps * link.latency;
}

double sum_seconds(int64_t values, int64_t ranks, const StageMachine& machine) {
  return all_reduce_seconds(static_cast<double>(values * accumulation_bytes(machine.element_size())), ranks, machine.link);
}

double collective_seconds(const ModelConfig& model, const StageShape& stage, const Operator& op, int64_t tokens, const StageMachine& machine) {
  if (!op.communicates) return 0;
  const Collective kind = collective_of(stage, op);
  const int64_t ranks = stage.tensor_parallel, values = tokens * collective_columns(model, stage, op);
  if (kind == Collective::all_reduce) return sum_seconds(values, ranks, machine);
  const bool gathers = kind == Collective::all_gather;
  const auto bytes = static_cast<double>(values * (gathers ? machine.element_size() : accumulation_bytes(machine.element_size())));
  const std::optional<double> measured =
      machine.link.measured_seconds(gathers ? CollectiveKind::all_gather : CollectiveKind::reduce_scatter, ranks, bytes);
  return measured ? *measured : all_reduce_seconds(bytes, ranks, machine.link) / 2;
}

}  // namespace cotune
