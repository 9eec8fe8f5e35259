/// Roofline cost of the operator list (schedule/operators.h) on a device of the cluster file: what planning uses where
/// nothing was measured. Where a profile stands beside it, OperatorParts::seconds (plan/cost/stage_cost.h) takes that.
#pragma once

#include <string>
#include <vector>

#include "plan/cost/measured_times.h"
#include "plan/shapes/cluster.h"
#include "schedule/operator_cost.h"
#include "schedule/operators.h"

namespace cotune {

/// Where and how a stage computes.
struct StageMachine {
  DeviceSpec device;
  LinkSpec link;                   ///< among the tensor-parallel ranks of the stage
  std::string dtype = "bfloat16";  ///< a key of device.flops
  /// Times of a profile of this device, in place of the roofline; nullptr: none. Must outlive this.
  const MeasuredTimes* measured = nullptr;
  bool recompute = false;  ///< activations are made again before their backward (plan/cost/recomputation.h)

  int64_t element_size() const { return dtype == "float32" ? 4 : dtype == "float64" ? 8 : 2; }
};

/// max(flops / (peak·compute_efficiency), bytes_moved / (bandwidth·memory_efficiency)): time at full use of the device.
/// Throws UserError when the device has no rate for the dtype.
double work_seconds(const OperatorCost& cost, const StageMachine& machine);

/// The same, but no less than `calls` launches.
double operator_seconds(const OperatorCost& cost, int64_t calls, const StageMachine& machine);

/// An optimizer step of `values` trained values, by their bytes at the reached bandwidth, all f32: value read and written,
/// gradient read and cleared, moments read and written.
double optimizer_seconds(int64_t values, int64_t moment_count, const DeviceSpec& device);

/// All-reduce of `bytes` over n ranks: as it was measured, where link.measured has it of n ranks, else a ring's,
/// 2·(n − 1)/n·bytes / bandwidth + 2·(n − 1)·latency.
double all_reduce_seconds(double bytes, int64_t ranks, const LinkSpec& link);

/// All-reduce of so many values among the tensor-parallel ranks of a stage. Sums travel as accumulations, max(4, element size) bytes each.
double sum_seconds(int64_t values, int64_t ranks, const StageMachine& machine);

/// What follows an operator that communicates, for a microbatch of so many tokens; 0 where it does not. Sums are of the size of
/// accumulations, gathers of the compute dtype. As it was measured, where machine.link.measured has its kind of so many ranks;
/// elsewhere a reduce-scatter or an all-gather is half an all-reduce of its bytes.
double collective_seconds(const ModelConfig& model, const StageShape& stage, const Operator& op, int64_t tokens, const StageMachine& machine);

}  // namespace cotune
